"""The JSON Schema of the config, and the script that writes it."""
