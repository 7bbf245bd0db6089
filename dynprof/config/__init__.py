"""The config file: bytes in, a frozen :class:`ProfilerConfig` or a sentence for each problem.

The model is the one source of every key, default and text; schema, template and table of settings
are made from it. Never writes into a config unless a command asks for it (``editing``), and knows
nothing of this process. Others use the names below, ``model``, ``experimental``, ``effects``,
``editing``, ``file_reading``, ``jsontext``, ``starter_files`` and ``wording``.
"""

from dynprof.config.experimental import ExperimentalConfig
from dynprof.config.file_reading import Source, read_source
from dynprof.config.model import ProfilerConfig
from dynprof.config.parse import Parsed, parse_config
from dynprof.config.ranks import RankSet
from dynprof.config.schema import config_schema, schema_text, template_text
from dynprof.config.sections import AgreementConfig, Limits, StorageConfig

__all__ = [
    "AgreementConfig",
    "ExperimentalConfig",
    "Limits",
    "Parsed",
    "ProfilerConfig",
    "RankSet",
    "Source",
    "StorageConfig",
    "config_schema",
    "parse_config",
    "read_source",
    "schema_text",
    "template_text",
]
