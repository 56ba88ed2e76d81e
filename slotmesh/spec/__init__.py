"""The specification of a mesh: the model, its rules, and its YAML form (`mesh.yaml`).

`model` declares each setting of a backend once, in the form that `setting` defines. These two and `rules` are pure, so
that cores may import them. `document` reads YAML, and `slotmesh.convert.specification` converts from and to
`slotmesh.v1`; both follow the declarations and name no setting.
"""
