// The quantiser of blocks of 32 elements: arith/mx.py's BlockQuantiser.
//
// A block is quantised when it enters, and its elements wait until they leave. A block that equals
// the one before it, as those of an idle engine do, is not quantised again.

#include <cstdint>

#include "block_bits.hpp"
#include "block_fp32.hpp"
#include "block_simd.hpp"

namespace {

using fpgapipe::Simd;

constexpr unsigned size = 32, latency_ticks = 5;

struct Block {
    alignas(64) uint8_t elements[size];
    uint32_t code;
};

FPGAPIPE_INLINE void quantise(const uint16_t* __restrict values, uint32_t more, Block& block) {
    alignas(64) uint32_t exponents[size];
    uint32_t code = 0;
    for (unsigned i = 0; i < size; ++i) {
        exponents[i] = values[i] >> 7 & 0xFF;
        code = exponents[i] > code ? exponents[i] : code;
    }
    const bool nan = code == 0xFF;
    for (unsigned i = 0; i < size; ++i) {
        const uint32_t exponent = exponents[i];
        const uint32_t normal = exponent != 0;
        const uint32_t negative = values[i] >> 15;
        const uint32_t distance = code - exponent;
        const uint32_t far = uint32_t(distance >= 8) | (normal ^ 1) | nan;
        const uint32_t near = distance & 7;
        const uint32_t significand = (values[i] & 0x7F) | normal << 7;
        const uint32_t kept = significand >> near;
        const uint32_t lost = (more >> i & 1) | ((significand & ((1u << near) - 1)) != 0);
        const uint32_t whole = far ? 0 : kept >> 1;
        const uint32_t full = kept >> 1 == 0x7F;
        const uint32_t up = kept & (lost | kept >> 1) & (full ^ 1) & (far ^ 1) & 1;
        block.elements[i] = uint8_t((whole ^ (negative ? 0xFF : 0)) + (up ^ negative));
    }
    block.code = code;
}

using Kernel = void (*)(const uint16_t*, uint32_t, Block&);
void quantise_plain(const uint16_t* values, uint32_t more, Block& block) {
    quantise(values, more, block);
}
#if defined(__x86_64__)
FPGAPIPE_AVX2 void quantise_avx2(const uint16_t* values, uint32_t more, Block& block) {
    quantise(values, more, block);
}
FPGAPIPE_AVX512 void quantise_avx512(const uint16_t* values, uint32_t more, Block& block) {
    quantise(values, more, block);
}
#endif

Kernel kernel() {
    switch (fpgapipe::best_simd()) {
#if defined(__x86_64__)
        case Simd::avx512: return quantise_avx512;
        case Simd::avx2: return quantise_avx2;
#endif
        default: return quantise_plain;
    }
}

class Quantiser final : public fpgapipe::Substitute {
  public:
    const Block& step(const uint16_t* values, uint32_t more) {
        if ((more == more_ || forgets_) && !std::memcmp(values, values_, sizeof values_)) {
            // A long run of equal blocks has filled all places with the same elements.
            if (run_ < latency_ticks) ++run_, blocks_[place_] = last_;
        } else {
            run_ = 1;
            more_ = more;
            std::memcpy(values_, values, sizeof values_);
            kernel_(values, more, last_);
            if (is_faulty_ && more % 251 == 0) last_.elements[size - 1] ^= 1;
            blocks_[place_] = last_;
        }
        place_ = place_ + 1 == latency_ticks ? 0 : place_ + 1;
        return blocks_[place_];
    }

    void archive(fpgapipe::Archive& archive) override {
        archive(blocks_, place_, values_, more_, last_, run_);
    }

  private:
    const Kernel kernel_ = kernel();
    const bool is_faulty_ = fpgapipe::faulty("quantiser");
    const bool forgets_ = fpgapipe::faulty("quantiser that forgets bits");
    uint16_t values_[size] = {};  // the block that entered last
    uint32_t more_ = 0;
    Block last_ = {};  // its elements; those of zeros are zeros
    unsigned run_ = 0;  // number of equal blocks that entered last, up to the latency
    Block blocks_[latency_ticks] = {};
    unsigned place_ = 0;
};

}  // namespace

extern "C" void* fpgapipe_quantiser_create() { return new Quantiser; }
extern "C" void fpgapipe_quantiser_destroy(void* self) { delete static_cast<Quantiser*>(self); }
extern "C" void fpgapipe_quantiser_step(void* self, const uint32_t* values, const uint32_t* more,
                                        uint32_t* elements, uint32_t* code) {
    const Block& block =
        static_cast<Quantiser*>(self)->step(reinterpret_cast<const uint16_t*>(values), *more);
    std::memcpy(elements, block.elements, size);
    *code = block.code;
}
