"""What a mesh should be: the model, its rules, its YAML form (`mesh.yaml`) and its wire form.

`model` and `rules` are pure, so that the controller's core can stand on them; `document` reads YAML, `wire` converts
from and to `slotmesh.v1`.
"""
