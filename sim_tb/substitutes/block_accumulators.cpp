// The FP32 accumulators below the array: all columns of gemm/datapath.py's AccumulatorColumns.
//
// The block is a pipeline without feedback in which all registers move with `advance`. So a sum is
// converted, and a total is added, when its operands come, and the result waits in a delay line.

#include <cstdint>

#include "block_bits.hpp"
#include "block_fp32.hpp"
#include "block_simd.hpp"

namespace {

using fpgapipe::Simd;

constexpr unsigned convert_ticks = 3, add_ticks = 5;

struct Lanes {
    unsigned count;
    int acc_bits;
    const int32_t *sums, *exponents;
    const uint32_t *nans, *old;
    uint32_t *converted, *totals;
};

FPGAPIPE_INLINE void compute(const Lanes& lanes) {
    const unsigned count = lanes.count;
    const int acc_bits = lanes.acc_bits;
    const int32_t* __restrict sums = lanes.sums;
    const int32_t* __restrict exponents = lanes.exponents;
    const uint32_t* __restrict nans = lanes.nans;
    const uint32_t* __restrict old = lanes.old;
    uint32_t* __restrict converted = lanes.converted;
    uint32_t* __restrict totals = lanes.totals;
    // The place of the word that leaves the delay line is that of the word that enters it.
    for (unsigned i = 0; i < count; ++i) {
        totals[i] = fpgapipe::add(old[i], converted[i]);
        converted[i] = fpgapipe::from_sum(sums[i], exponents[i], nans[i], acc_bits);
    }
}

using Kernel = void (*)(const Lanes&);
void compute_plain(const Lanes& lanes) { compute(lanes); }
#if defined(__x86_64__)
FPGAPIPE_AVX2 void compute_avx2(const Lanes& lanes) { compute(lanes); }
FPGAPIPE_AVX512 void compute_avx512(const Lanes& lanes) { compute(lanes); }
#endif

Kernel kernel() {
    switch (fpgapipe::best_simd()) {
#if defined(__x86_64__)
        case Simd::avx512: return compute_avx512;
        case Simd::avx2: return compute_avx2;
#endif
        default: return compute_plain;
    }
}

class Accumulators final : public fpgapipe::Substitute {
  public:
    Accumulators(unsigned cols, int acc_bits)
        : cols_(cols),
          acc_bits_(acc_bits),
          kernel_(kernel()),
          sums_(cols + 16),
          exponents_(cols + 16),
          nans_(cols + 16),
          converted_(convert_ticks, cols),
          totals_(add_ticks, cols) {}

    void step(unsigned code_a, unsigned nan_a, const uint8_t* codes, const uint32_t* nans,
              const uint32_t* sums, const uint32_t* old, uint32_t* totals) {
        fpgapipe::unpack(sums, acc_bits_, cols_, sums_.data());
        kernel_({cols_, acc_bits_, sums_.data(), exponents_.data(), nans_.data(), old,
                 converted_.oldest(), totals_.oldest()});
        converted_.advance();
        totals_.advance();
        const uint32_t* leaving = totals_.oldest();
        for (unsigned c = 0; c < cols_; ++c) totals[c] = leaving[c];
        if (is_faulty_ && old[0] % 251 == 0) totals[cols_ - 1] ^= 1;
        // The codes come one cycle before their sums.
        for (unsigned c = 0; c < cols_; ++c) {
            exponents_.data()[c] = int32_t(code_a + codes[c]) + (acc_bits_ - 1 - 127 - 12);
            nans_.data()[c] = nan_a | (nans[c / 32] >> c % 32 & 1);
        }
    }

    void archive(fpgapipe::Archive& archive) override {
        exponents_.archive(archive);
        nans_.archive(archive);
        converted_.archive(archive);
        totals_.archive(archive);
    }

  private:
    const unsigned cols_;
    const int acc_bits_;
    const Kernel kernel_;
    const bool is_faulty_ = fpgapipe::faulty("accumulators");
    fpgapipe::Aligned<int32_t> sums_, exponents_;  // sums_ is used within a step only
    fpgapipe::Aligned<uint32_t> nans_;
    fpgapipe::Delay<uint32_t> converted_, totals_;
};

}  // namespace

extern "C" void* fpgapipe_accumulators_create(int cols, int acc_bits) {
    return new Accumulators(cols, acc_bits);
}
extern "C" void fpgapipe_accumulators_destroy(void* self) {
    delete static_cast<Accumulators*>(self);
}
extern "C" void fpgapipe_accumulators_step(void* self, int code_a, unsigned char nan_a,
                                           const uint32_t* codes, const uint32_t* nans,
                                           const uint32_t* sums, const uint32_t* old,
                                           uint32_t* totals) {
    static_cast<Accumulators*>(self)->step(code_a, nan_a, reinterpret_cast<const uint8_t*>(codes),
                                           nans, sums, old, totals);
}
