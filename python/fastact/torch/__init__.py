"""The bridge to torch: gradients, torch.compile, transforms of torch.func.

It needs no import. What calls an op with a tensor that requires grad, or inside torch.compile, has
it loaded, and `import fastact` alone imports no torch.
"""
