from engine.passes.packed import PACKED_TYPES, PackedEncoder

__all__ = ["PACKED_TYPES", "PackedEncoder"]
