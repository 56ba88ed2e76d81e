"""What a mesh should be: the model, its rules, its YAML form (`mesh.yaml`) and its wire form.

A setting of a backend is declared once, in `model`; `setting` has the form of a declaration. These two and `rules` are
pure, so that cores can stand on them, and so is `prospect`, which tables say of backends; `document` reads YAML, `wire`
converts from and to `slotmesh.v1`. Both follow the declarations and name no setting.
"""
