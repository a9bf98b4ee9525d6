// The functions of model_kernels.hpp with one instruction set. This file is compiled for each:
// FPGAPIPE_AVX512 or FPGAPIPE_AVX2 is defined together with the compiler's option for it.
//
// Nothing of the standard library with code of its own is included: the linker might take that code
// for all.

#include "model_gemm.hpp"
#include "model_vector.hpp"

namespace fpgapipe_model {

#if defined(FPGAPIPE_AVX512)
#define FPGAPIPE_KERNELS kernels_avx512
#elif defined(FPGAPIPE_AVX2)
#define FPGAPIPE_KERNELS kernels_avx2
#else
#define FPGAPIPE_KERNELS kernels_plain
#endif

extern const Kernels FPGAPIPE_KERNELS;
const Kernels FPGAPIPE_KERNELS = {
    sizeof(Element), stride_of,        weight_bytes_of, read_units,      scales_of,
    pack_tiles,      multiply_product, write_product,   compute_vectors, write_vectors,
};

} // namespace fpgapipe_model
