"""The layers and the language model of mamba_ssm, on `retrograd.nn`. Nothing here is imported before it is used."""
