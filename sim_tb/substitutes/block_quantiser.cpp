// The quantiser of blocks of 32 elements: arith/mx.py's BlockQuantiser.
//
// A block is quantised when it enters, and its elements wait until they leave. A block that equals
// the one before it, as those of an idle engine do, is not quantised again.

#include <cstdint>

#include "block_bits.hpp"
#include "block_quantise.hpp"
#include "block_simd.hpp"

namespace {

using Block = fpgapipe::QuantisedBlock;
constexpr unsigned size = fpgapipe::block_size, latency_ticks = fpgapipe::quantise_ticks;

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
    const fpgapipe::QuantiseKernel kernel_ = fpgapipe::quantise_kernel();
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
