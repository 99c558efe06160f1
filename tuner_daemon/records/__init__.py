"""Frozen records that flow between the rooms of the house. They import nothing but errors."""
