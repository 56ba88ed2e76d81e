"""Unit tests of the controller and of the mesh's specification."""
