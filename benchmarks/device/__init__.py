"""Everything to ask of a GPU, in one run of some minutes: are the kernels right, and how near the roofline are they?

    python -m benchmarks.device [--output device.json] [--layers 32]     on a GPU; 8 minutes at most on an H200
    python -m benchmarks.device --smoke                                  correctness only, in Triton's interpreter
    python -m benchmarks.device --dry-run                                every part in tiny sizes on the CPU

Parts, in this order; one that fails is recorded with its error, and one for which no time is left with that reason:

checks            every kernel, the runners and their graphs, against the torch reference
paged             decode and prefill steps of a random model of Llama-3.1-8B's shape in bf16, contexts of 1,024, batches
                  of 1 to 256, beside their floors: bytes over the bandwidth that a copy reaches here, multiplications
                  over the rate that a large product reaches here
tables            what block tables cost: uploaded whole, as the runner does it, and gathered for a compiled graph
products          quantised products of that shape beside the time their weights take to be read; every tiling listed
compiled bf16     the compiled build of the same model, whole; should it not compile, its fused graph as "fused bf16"
compiled fp8, compiled int4    the same on a few layers

Needs torch, triton, msgspec and the repository (it uses the tests' cases). Prints JSON after each part.
"""
