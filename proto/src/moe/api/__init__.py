"""Generated messages and stubs, one package per noun and version. Written by `make proto`; never edited by hand."""
