"""Layouts of Amaranth for the groups of fields of the instruction set."""

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from fpgapipe.hw.hls_models.isa.fields import Field, Group


def layout_of(group: Group) -> data.StructLayout:
    """Return the layout of a group: its fields by name, and a group that repeats as an array."""
    members = {}
    for field in group.fields:
        if isinstance(field, Field):
            members[field.name] = signed(field.bits) if field.signed else unsigned(field.bits)
        elif field.times:
            members[field.name] = data.ArrayLayout(layout_of(field), field.times)
        else:
            members[field.name] = layout_of(field)
    return data.StructLayout(members)
