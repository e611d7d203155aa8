"""Kinds of device that torch computes on: one object for each, with all that differs from kind to kind.

`device_kind` says what a kind must do, `cpu` and `cuda` do it, and `registry` finds the kind of a device. No other room
asks for the type of a device, so a new kind is one file.
"""
