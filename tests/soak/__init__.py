"""The long tests of reliability. Each has a short form, of the same function, in the ordinary suite."""
