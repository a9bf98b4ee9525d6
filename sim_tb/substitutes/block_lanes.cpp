// The lanes of the vector engine: vector/vector_lane.py's VectorLaneArray.
//
// The FP32 units are pipelines without feedback; they compute when their operands come, and the
// results wait in delay lines. All other registers are here one by one, as their enables differ.
// Names are those of the gateware; the number at the end of one is the register's stage.

#include <cstdint>
#include <cstring>

#include "block_bits.hpp"
#include "block_fp32.hpp"
#include "block_simd.hpp"

namespace {

using fpgapipe::Simd;

constexpr unsigned most_lanes = 32, ticks = 5, num_constants = 5;
constexpr uint32_t one_bits = 0x3F800000, negative_bits = 0x80000000;

using Words = uint32_t[most_lanes];

// Inputs of a cycle: for each lane a word, or one value for all lanes.
struct Inputs {
    const uint32_t *x, *y, *k0, *factor_y, *k1, *k2, *choice_x, *choice_y, *k3, *initial;
    const uint32_t *config, *bits, *previous;
    uint32_t there, first, counter, index, finish;
};

struct Outputs {
    uint32_t *sums, *best, *indices, *results;
};

// Delay line of a unit with its operands' registers elsewhere.
struct Unit {
    alignas(64) uint32_t words[ticks][most_lanes];
    unsigned place;
    FPGAPIPE_INLINE uint32_t* oldest() { return words[place]; }
    FPGAPIPE_INLINE void advance() { place = place + 1 == ticks ? 0 : place + 1; }
};

struct State {
    alignas(64) Words augend2, addend2, sum8, factor8, multiplicand8, second8;
    alignas(64) Words then19, otherwise19, then20, otherwise20, left, right;
    alignas(64) Words less, equal, unordered, drawn, element21, previous21;
    alignas(64) Words there21, index21, better22, nan22, zero22, element22, previous22, index22;
    alignas(64) Words best23, index23, number23, result;
    Unit first_adder, multiplier, second_multiplier, second_adder, adder;
};

FPGAPIPE_INLINE int32_t ordered(uint32_t value) {
    return int32_t(value ^ (uint32_t(int32_t(value) >> 31) & 0x7FFFFFFF));
}
FPGAPIPE_INLINE uint32_t is_zero(uint32_t value) { return (value & 0x7F800000) == 0; }
FPGAPIPE_INLINE uint32_t is_nan(uint32_t value) {
    return (value & 0x7FFFFFFF) > fpgapipe::infinity_bits;
}

// A whole number of 8 bits in FP32, without its lower 16 bits.
FPGAPIPE_INLINE uint32_t whole_number(uint32_t value) {
    uint32_t word = value << 24;
    const uint32_t shift = fpgapipe::normalize(word);
    return value ? ((127 + 7 - shift) << 23 | (word >> 8 & 0x7FFFFF)) >> 16 : 0;
}

FPGAPIPE_INLINE void fill(uint32_t* words, uint32_t value, unsigned lanes) {
    for (unsigned i = 0; i < lanes; ++i) words[i] = value;
}

FPGAPIPE_INLINE void copy(uint32_t* to, const uint32_t* from, unsigned lanes) {
    for (unsigned i = 0; i < lanes; ++i) to[i] = from[i];
}

FPGAPIPE_INLINE void tick(State& s, const unsigned lanes, const Inputs& in) {
    const uint32_t* c = in.config;
    const auto field = [c](unsigned first, unsigned bits) {
        const uint64_t word = c[first / 32] | uint64_t(c[first / 32 + 1]) << 32;
        return uint32_t(word >> first % 32) & ((1u << bits) - 1);
    };
    const uint32_t threshold = field(160, 16), negate_x = field(176, 1) << 31;
    const uint32_t addend = field(177, 2), negate_addend = field(179, 1) << 31;
    const uint32_t factor = field(180, 3), second = field(183, 3);
    const uint32_t negate_second = field(186, 1) << 31, is_random = field(187, 1);
    const uint32_t outcomes = field(188, 4), left = field(192, 2), right = field(194, 2);
    const uint32_t then = field(196, 3), otherwise = field(199, 3), initial = field(202, 2);
    const uint32_t reduces = field(204, 1), takes_maximum = field(205, 1);
    const uint32_t gives_index = field(206, 1), relu = field(207, 1);

    alignas(64) Words constant[num_constants], zeros, ones, negatives, counters, negated_y;
    for (unsigned k = 0; k < num_constants; ++k) fill(constant[k], c[k], lanes);
    fill(zeros, 0, lanes);
    fill(ones, one_bits, lanes);
    fill(negatives, negative_bits, lanes);
    fill(counters, in.counter, lanes);
    for (unsigned i = 0; i < lanes; ++i) negated_y[i] = in.y[i] ^ negate_addend;

    // Later stages come first, because they take what earlier registers have now.
    const uint32_t* sums = s.adder.oldest();
    if (in.finish) {
        for (unsigned i = 0; i < lanes; ++i) {
            const uint32_t total = takes_maximum ? s.best23[i] : sums[i];
            const uint32_t lowest = total >> 23 == 0x1FF;
            const uint32_t value = gives_index ? s.number23[i] << 16
                                               : (lowest ? total & 0xFF800000 : total);
            s.result[i] = relu & value >> 31 ? 0 : value;
        }
    }
    if (takes_maximum) {
        for (unsigned i = 0; i < lanes; ++i) {
            const uint32_t better = s.better22[i], nan = s.nan22[i];
            const uint32_t element = s.element22[i];
            uint32_t magnitude = s.zero22[i] ? 0 : element & 0x7FFFFFFF;
            magnitude = nan ? fpgapipe::nan_bits : magnitude;
            const uint32_t flushed = magnitude | (nan ? 0 : element & negative_bits);
            s.best23[i] = better ? flushed : s.previous22[i];
            s.index23[i] = better ? in.index : s.index22[i];
            s.number23[i] = whole_number(s.index23[i]);
            const uint32_t coming = s.element21[i], before = s.previous21[i];
            const uint32_t larger = ordered(coming) > ordered(before);
            const uint32_t both_zero = is_zero(coming) & is_zero(before);
            s.better22[i] = s.there21[i] & (is_nan(coming) | (larger & (both_zero ^ 1)));
            s.nan22[i] = is_nan(coming);
            s.zero22[i] = is_zero(coming);
            s.element22[i] = coming;
            s.previous22[i] = before;
            s.index22[i] = s.index21[i];
            s.there21[i] = in.there >> i & 1;
        }
    } else {
        uint32_t* to = s.adder.oldest();
        for (unsigned i = 0; i < lanes; ++i)
            to[i] = fpgapipe::add(s.previous21[i], s.element21[i]);
        s.adder.advance();
    }

    // The sum or maximum of the earlier elements has 40 bits in each lane.
    const uint32_t nothing = takes_maximum ? 0xFFFFFFFF : negative_bits;
    for (unsigned i = 0; i < lanes; ++i) {
        uint32_t previous;
        std::memcpy(&previous, reinterpret_cast<const uint8_t*>(in.previous) + 5 * i, 4);
        const auto index = reinterpret_cast<const uint8_t*>(in.previous)[5 * i + 4];
        const uint32_t begin = initial == 0 ? nothing : initial == 1 ? in.initial[i] : c[4];
        s.previous21[i] = in.first ? begin : previous;
        if (takes_maximum) s.index21[i] = in.first ? 0 : index;
    }
    for (unsigned i = 0; i < lanes; ++i) {
        const uint32_t compared = s.equal[i] ? outcomes >> 1 : s.less[i] ? outcomes : outcomes >> 2;
        const uint32_t test = is_random        ? s.drawn[i]
                              : s.unordered[i] ? outcomes >> 3
                                               : compared;
        const uint32_t chosen = test & 1 ? s.then20[i] : s.otherwise20[i];
        const uint32_t is_constant = (test & 1 ? then : otherwise) == 4;
        const uint32_t element = is_constant ? c[3] : chosen;
        s.element21[i] = reduces & ~(in.there >> i) & 1 ? negative_bits : element;
    }
    copy(s.then20, s.then19, lanes);
    copy(s.otherwise20, s.otherwise19, lanes);
    const uint32_t* result = s.second_adder.oldest();
    if (outcomes) {
        const uint32_t* lefts[] = {in.choice_x, in.choice_y, result, result};
        const uint32_t* rights[] = {in.choice_y, in.k3, constant[3], counters};
        for (unsigned i = 0; i < lanes; ++i) {
            const uint32_t a = s.left[i], b = s.right[i];
            s.less[i] = ordered(a) < ordered(b);
            s.equal[i] = uint32_t(a == b) | (is_zero(a) & is_zero(b));
            s.unordered[i] = is_nan(a) | is_nan(b);
        }
        copy(s.left, lefts[left], lanes);
        copy(s.right, rights[right], lanes);
    }
    if (is_random) {
        for (unsigned i = 0; i < lanes; ++i)
            s.drawn[i] = (in.bits[i / 2] >> 16 * (i % 2) & 0xFFFF) < threshold;
    }
    // A constant comes in later; meanwhile there is the first choice.
    const uint32_t* choices[] = {result, in.choice_x, in.choice_y, in.k3,
                                 result, zeros,       in.choice_y, in.k3};
    copy(s.then19, choices[then], lanes);
    copy(s.otherwise19, choices[otherwise], lanes);

    const uint32_t *product = s.multiplier.oldest(), *other = s.second_multiplier.oldest();
    for (unsigned i = 0; i < lanes; ++i) {
        s.second_adder.oldest()[i] = fpgapipe::add(product[i], other[i]);
        s.multiplier.oldest()[i] = fpgapipe::multiply(s.sum8[i], s.factor8[i]);
        s.second_multiplier.oldest()[i] = fpgapipe::multiply(s.multiplicand8[i], s.second8[i]);
    }
    s.second_adder.advance();
    s.multiplier.advance();
    s.second_multiplier.advance();

    const uint32_t* total = s.first_adder.oldest();
    const uint32_t* factors[] = {ones,        total, in.factor_y, in.k1,
                                 constant[1], total, in.factor_y, in.k1};
    const uint32_t* seconds[] = {negatives,   ones,        in.factor_y, in.k2,
                                 constant[2], constant[2], constant[2], constant[2]};
    copy(s.factor8, factors[factor], lanes);
    copy(s.second8, seconds[second], lanes);
    copy(s.sum8, total, lanes);
    for (unsigned i = 0; i < lanes; ++i)
        s.multiplicand8[i] = second ? in.factor_y[i] ^ negate_second : 0;
    for (unsigned i = 0; i < lanes; ++i)
        s.first_adder.oldest()[i] = fpgapipe::add(s.augend2[i], s.addend2[i]);
    s.first_adder.advance();
    const uint32_t* addends[] = {negatives, negated_y, in.k0, constant[0]};
    copy(s.addend2, addends[addend], lanes);
    for (unsigned i = 0; i < lanes; ++i) s.augend2[i] = in.x[i] ^ negate_x;
}

using Kernel = void (*)(State&, unsigned, const Inputs&);
void tick_plain(State& state, unsigned lanes, const Inputs& in) { tick(state, lanes, in); }
#if defined(__x86_64__)
// Most cores have 16 lanes; a constant number of iterations makes better code.
FPGAPIPE_AVX2 void tick_avx2(State& state, unsigned lanes, const Inputs& in) {
    lanes == 16 ? tick(state, 16, in) : tick(state, lanes, in);
}
FPGAPIPE_AVX512 void tick_avx512(State& state, unsigned lanes, const Inputs& in) {
    lanes == 16 ? tick(state, 16, in) : tick(state, lanes, in);
}
#endif

Kernel kernel() {
    switch (fpgapipe::best_simd()) {
#if defined(__x86_64__)
        case Simd::avx512: return tick_avx512;
        case Simd::avx2: return tick_avx2;
#endif
        default: return tick_plain;
    }
}

class Lanes final : public fpgapipe::Substitute {
  public:
    explicit Lanes(unsigned lanes) : lanes_(lanes), kernel_(kernel()), state_() {}

    void step(const Inputs& in, const Outputs& out) {
        kernel_(state_, lanes_, in);
        std::memcpy(out.sums, state_.adder.oldest(), 4 * lanes_);
        std::memcpy(out.best, state_.best23, 4 * lanes_);
        std::memcpy(out.results, state_.result, 4 * lanes_);
        auto* indices = reinterpret_cast<uint8_t*>(out.indices);
        for (unsigned i = 0; i < lanes_; ++i) indices[i] = uint8_t(state_.index23[i]);
        if (is_faulty_ && in.x[0] % 251 == 0) out.sums[lanes_ - 1] ^= 1;
    }

    void archive(fpgapipe::Archive& archive) override { archive(state_); }

  private:
    const unsigned lanes_;
    const Kernel kernel_;
    const bool is_faulty_ = fpgapipe::faulty("lanes");
    State state_;
};

}  // namespace

extern "C" void* fpgapipe_lanes_create(int lanes) { return new Lanes(lanes); }
extern "C" void fpgapipe_lanes_destroy(void* self) { delete static_cast<Lanes*>(self); }
extern "C" void fpgapipe_lanes_step(
    void* self, const uint32_t* config, const uint32_t* x, const uint32_t* y, const uint32_t* k0,
    const uint32_t* factor_y, const uint32_t* k1, const uint32_t* k2, const uint32_t* choice_x,
    const uint32_t* choice_y, const uint32_t* k3, const uint32_t* initial, const uint32_t* bits,
    const uint32_t* previous, int counter, int there, unsigned char first, int index,
    unsigned char finish, uint32_t* sums, uint32_t* best, uint32_t* indices, uint32_t* results) {
    const Inputs in{x,        y,  k0,      factor_y, k1,   k2,       choice_x,
                    choice_y, k3, initial, config,   bits, previous, uint32_t(there),
                    first,    uint32_t(counter),     uint32_t(index), finish};
    static_cast<Lanes*>(self)->step(in, {sums, best, indices, results});
}
