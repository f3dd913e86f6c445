"""The engine of Carnator: cross-request reuse for video diffusion transformers.

The core owns decisions and data; a host adapter under ``hosts/`` evaluates the model. Nothing outside ``hosts/``
imports a host, so the whole core runs and is tested without one.
"""
