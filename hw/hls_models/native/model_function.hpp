// Functions: the fixed-point evaluator of numerics/function.py, number by number.

#pragma once

#include "model_lanes.hpp"

namespace fpgapipe_model {
namespace {

enum Function { reciprocal = 1, rsqrt, square_root, exponential, logarithm, tanh_, sigmoid };

constexpr int reciprocal_row = 0, exp_row = 128, tanh_row = 192, rsqrt_row = 256;
constexpr int sigmoid_row = 512, log_row = 928;
constexpr int64_t far = 13, saturated = 134, unit = int64_t(1) << 28, fraction_mask = unit - 1;
constexpr int64_t log2_e = 0x2E2A8ECA5, ln_2 = 0x2C5C85FDF, one = int64_t(1) << 33;

struct Number {
    int64_t negative, power, value;
};

// c0, c1 and c2 of all segments.
struct Evaluator {
    const int32_t* table;

    INLINE int64_t evaluate(int64_t row, int64_t offset) const {
        const int32_t* const c = table + 3 * row;
        const int64_t slope = (int64_t(c[1]) << 2) + (c[2] * (offset >> 6) >> 15);
        return c[0] + (slope * offset >> 25);
    }
    static INLINE int64_t times(int64_t value, int64_t factor) { return value * factor >> 23; }
    static INLINE int64_t at_most(int64_t x, int64_t most) { return x < most ? x : most; }
    static INLINE int64_t within(int64_t x, int64_t low, int64_t high) {
        return x < low ? low : x > high ? high : x;
    }
    // abs(x) times a constant, in steps of 2**-28.
    static INLINE int64_t fixed_point(int64_t exponent, int64_t fraction, int64_t constant) {
        return (fraction + (1 << 23)) * constant >> 22 >> within(saturated - 1 - exponent, 0, 63);
    }
    INLINE int64_t inverse_root(int64_t exponent, int64_t fraction) const {
        const int64_t octave = ~exponent & 1;
        return evaluate(rsqrt_row + (octave << 7) + (fraction >> 16), (fraction & 0xFFFF) << 7);
    }
    INLINE int64_t sigmoid_of_negative(int64_t exponent, int64_t fraction, int64_t& k) const {
        const int64_t y = fixed_point(exponent, fraction, log2_e), f = y & fraction_mask;
        k = y >> 28;
        return k >= far ? evaluate(exp_row + (f >> 22), (f & 0x3FFFFF) << 1)
                        : evaluate(sigmoid_row + (k << 5) + (f >> 23), f & 0x7FFFFF);
    }

    template <int function>
    INLINE Number number(int64_t sign, int64_t exponent, int64_t fraction) const {
        if constexpr (function == reciprocal) {
            return {sign, 254 - exponent,
                    evaluate(reciprocal_row + (fraction >> 16), (fraction & 0xFFFF) << 7)};
        } else if constexpr (function == rsqrt) {
            return {0, 191 - ((exponent + 1) >> 1), inverse_root(exponent, fraction)};
        } else if constexpr (function == square_root) {
            return {0, 64 + (exponent >> 1),
                    times(inverse_root(exponent, fraction), fraction + (1 << 23))};
        } else if constexpr (function == exponential) {
            const int64_t y = fixed_point(exponent, fraction, log2_e), k = y >> 28;
            const int64_t f = sign ? y & fraction_mask : ~y & fraction_mask;
            return {0, 127 + (sign ? -k : k + 1),
                    evaluate(exp_row + (f >> 22), (f & 0x3FFFFF) << 1)};
        } else if constexpr (function == logarithm) {
            const int64_t upper = fraction >> 22, power = exponent - 127 + upper;
            const int64_t row =
                upper ? log_row - 32 + (fraction >> 17) : log_row + 32 + (fraction >> 16);
            const int64_t offset = upper ? (fraction & 0x1FFFF) << 6 : (fraction & 0xFFFF) << 7;
            const int64_t t = upper ? (1 << 23) - fraction : fraction;
            // t is shifted until its first bit is at the top.
            int64_t places = t ? __builtin_clz(uint32_t(t)) - 8 : 0;
            const int64_t value = times(evaluate(row, offset), t << places);
            places += upper;
            const int64_t whole = ((power < 0 ? -power : power) << 16) * ln_2 >> 22;
            const int64_t part = value >> at_most(places, 31);
            const int64_t total = whole + ((upper == 1) != (power < 0) ? -part : part);
            const bool near = power == 0;
            return {power < 0 || (near && upper), 127 - (near ? places : 0),
                    near ? value : total};
        } else if constexpr (function == tanh_) {
            // The argument is 2x.
            if (exponent + 1 < 127) {
                const int64_t f = fixed_point(exponent + 1, fraction, one) & fraction_mask;
                const int64_t ratio = evaluate(tanh_row + (f >> 22), (f & 0x3FFFFF) << 1);
                return {sign, exponent, times(ratio, fraction + (1 << 23))};
            }
            int64_t k;
            const int64_t value = sigmoid_of_negative(exponent + 1, fraction, k);
            return {sign, 127, unit - (value >> within(k - 1, 0, 31))};
        } else {
            int64_t k;
            const int64_t value = sigmoid_of_negative(exponent, fraction, k);
            if (sign) {
                const int64_t square = times(value, value >> 5) >> at_most(k, 31);
                return {0, 127 - k, k >= far ? value - square : value};
            }
            return {0, 127, unit - (value >> at_most(k, 31))};
        }
    }

    template <int function>
    INLINE uint32_t compute(uint32_t bits) const {
        const int64_t sign = bits >> 31, exponent = bits >> 23 & 255, fraction = bits & 0x7FFFFF;
        const uint32_t signed_zero = bits & sign_bit;
        const bool zero = exponent == 0, largest = exponent == 255;
        if (largest && fraction) return nan_bits;
        if constexpr (function == reciprocal) {
            if (zero) return signed_zero | infinity_bits;
            if (largest) return signed_zero;
        } else if constexpr (function == rsqrt) {
            if (zero) return signed_zero | infinity_bits;
            if (sign) return nan_bits;
            if (largest) return 0;
        } else if constexpr (function == square_root) {
            if (zero) return signed_zero;
            if (sign) return nan_bits;
            if (largest) return infinity_bits;
        } else if constexpr (function == exponential) {
            if (exponent >= saturated) return sign ? 0 : infinity_bits;
        } else if constexpr (function == logarithm) {
            if (zero) return sign_bit | infinity_bits;
            if (sign) return nan_bits;
            if (largest) return infinity_bits;
            if (exponent == 127 && fraction == 0) return 0;
        } else if constexpr (function == tanh_) {
            if (exponent >= saturated - 1) return signed_zero | 0x3F800000;
        } else {
            if (exponent >= saturated) return sign ? 0 : 0x3F800000;
        }
        const Number found = number<function>(sign, exponent, fraction);
        // The conversion rounds to 24 bits, ties to even; values are in steps of 2**-28.
        // A logarithm takes more than 32 bits.
        const float value = float(found.value ^ (faulty(10) ? 0x800000 : 0));
        int64_t rounded = load<int32_t>(&value);
        rounded += (found.power - (127 + 28)) * (1 << 23);
        rounded = at_most(rounded, infinity_bits);
        if (rounded < 0x800000) rounded = 0;
        return uint32_t(rounded) | uint32_t(found.negative) << 31;
    }

    template <int function>
    void compute_all(float* numbers, int64_t count) const {
        for (int64_t at = 0; at < count; ++at)
            save(numbers + at, compute<function>(load<uint32_t>(numbers + at)));
    }
};

void apply(int function, const int32_t* table, float* numbers, int64_t count) {
    const Evaluator with{table};
    switch (function) {
        case reciprocal: return with.compute_all<reciprocal>(numbers, count);
        case rsqrt: return with.compute_all<rsqrt>(numbers, count);
        case square_root: return with.compute_all<square_root>(numbers, count);
        case exponential: return with.compute_all<exponential>(numbers, count);
        case logarithm: return with.compute_all<logarithm>(numbers, count);
        case tanh_: return with.compute_all<tanh_>(numbers, count);
        case sigmoid: return with.compute_all<sigmoid>(numbers, count);
    }
}

} // namespace
} // namespace fpgapipe_model
