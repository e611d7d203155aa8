"""File formats and file locks, used by every other room.

`json_body` turns dataclass values into plain JSON and back, with errors that name the field. `json_document` saves such
a value as a file with a kind and a schema version. `json_lines` reads files that a run appends to. `toml` and
`toml_section` read TOML. `text_file` reads text, and writes a file in one piece. `lock` locks files.
"""
