// Vectors of numbers with the FP32 arithmetic of numerics/fp32.py, for one instruction set.
//
// On x86, AVX2 and AVX-512 flush subnormal operands and results themselves. They find out after
// rounding whether a result is below 2**-126, which is the rule of the hardware. The plain code
// flushes explicitly and runs on any processor. A NaN may have any bits until `clean`.

#pragma once

#include <cstdint>
#include <cstring>

#include "model_kernels.hpp"

#if defined(FPGAPIPE_AVX512) || defined(FPGAPIPE_AVX2)
#include <immintrin.h>
#define FPGAPIPE_FLUSHES 1
#endif

#define INLINE inline __attribute__((always_inline))

namespace fpgapipe_model {
namespace {

#if defined(FPGAPIPE_AVX512)
constexpr int width = 16;
#elif defined(FPGAPIPE_AVX2)
constexpr int width = 8;
#else
constexpr int width = 4;
#endif
constexpr int pieces = lanes / width; // of a vector of the vector engine

typedef float Floats __attribute__((vector_size(4 * width)));
typedef int32_t Ints __attribute__((vector_size(4 * width)));
typedef uint32_t Words __attribute__((vector_size(4 * width)));
typedef uint16_t Halves __attribute__((vector_size(2 * width)));
typedef int16_t Shorts __attribute__((vector_size(2 * width)));
typedef int8_t Bytes __attribute__((vector_size(width)));

constexpr uint32_t sign_bit = 0x80000000, infinity_bits = 0x7F800000, nan_bits = 0x7FC00000;
constexpr float least = 0x1p-126f;

template <typename T>
INLINE T load(const void* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <typename T>
INLINE void save(void* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

INLINE Floats all(float x) { return x - Floats{}; }
INLINE Words bits_of(Floats x) { return (Words)x; }
INLINE Floats floats_of(Words x) { return (Floats)x; }

// The only NaN in place of any other.
INLINE Floats clean(Floats x) { return x == x ? x : floats_of(Words{} + nan_bits); }

// Zeros of the same sign in place of subnormals, by integers: for what comes from memory.
INLINE Floats flush(Words x) {
    const Words exponent = x & infinity_bits;
    return floats_of(exponent == 0 ? x & sign_bit : x);
}

INLINE Floats normal([[maybe_unused]] Floats x) {
#ifdef FPGAPIPE_FLUSHES
    return x;
#else
    return flush(bits_of(x));
#endif
}

// Operands are flushed, apart from those of accumulators.
INLINE Floats add(Floats a, Floats b) { return normal(normal(a) + normal(b)); }

INLINE Floats multiply(Floats a, Floats b) {
#ifdef FPGAPIPE_FLUSHES
    return a * b;
#else
    // 48 bits, so the product is exact in FP64. Below 2**-126 - 2**-151, also 24 bits would not
    // round up to the least normal number.
    Floats result;
    for (int lane = 0; lane < width; ++lane) {
        double exact = double(a[lane]) * double(b[lane]);
        const double size = exact < 0 ? -exact : exact;
        if (size < 0x1p-126 - 0x1p-151) exact *= 0;
        result[lane] = float(exact);
    }
    return result;
#endif
}

INLINE float narrowed(double exact) {
#ifndef FPGAPIPE_FLUSHES
    const double size = exact < 0 ? -exact : exact;
    if (size < 0x1p-126 - 0x1p-151) exact *= 0;
#endif
    return float(exact);
}

// The nearest integers, ties to even, of numbers below 2**22.
INLINE Ints rounded(Floats x) {
#if defined(FPGAPIPE_AVX512)
    return (Ints)_mm512_cvtps_epi32((__m512)x);
#elif defined(FPGAPIPE_AVX2)
    return (Ints)_mm256_cvtps_epi32((__m256)x);
#else
    const Floats magic = all(0x1.8p23f);
    return (Ints)(x + magic) - (Ints)magic;
#endif
}

INLINE Ints least_of(Ints a, Ints b) { return a < b ? a : b; }
INLINE Ints largest_of(Ints a, Ints b) { return a > b ? a : b; }

INLINE int32_t largest(Ints x) {
#if defined(FPGAPIPE_AVX512)
    return _mm512_reduce_max_epi32((__m512i)x);
#else
    int32_t found = x[0];
    for (int lane = 1; lane < width; ++lane) found = x[lane] > found ? x[lane] : found;
    return found;
#endif
}

INLINE Words widened(Halves x) {
#if defined(FPGAPIPE_AVX512)
    return (Words)_mm512_cvtepu16_epi32((__m256i)x);
#elif defined(FPGAPIPE_AVX2)
    return (Words)_mm256_cvtepu16_epi32((__m128i)x);
#else
    return __builtin_convertvector(x, Words);
#endif
}

INLINE Bytes bytes_of(Ints x) {
#if defined(FPGAPIPE_AVX512)
    return (Bytes)_mm512_cvtepi32_epi8((__m512i)x);
#else
    return __builtin_convertvector(x, Bytes);
#endif
}

// Ones in the lanes from `low` to `high`.
INLINE Words lanes_between(int64_t low, int64_t high, int first) {
    static constexpr int32_t numbers[64] = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
        22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
        44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    const Ints lane = load<Ints>(numbers + first);
    return (Words)((lane >= int32_t(low)) & (lane < int32_t(high)));
}

INLINE uint32_t bf16_of(uint32_t bits) { return (bits + (0x7FFF + (bits >> 16 & 1))) >> 16; }

// 2**power, for the exponents of normal numbers.
INLINE float power_of_two(int32_t power) {
    const uint32_t bits = uint32_t(power + 127) << 23;
    return load<float>(&bits);
}

struct Quantisation {
    float first, second;
    bool is_zero, needs_two;
};

// Factors of a block by its code. The scale is split where it is too large for FP32; what a product
// with the first factor loses would be rounded to zero anyway.
INLINE Quantisation quantisation(int32_t code) {
    const int32_t places = code_bias + element_fraction_bits - code;
    if (code == 0 || code == code_nan) return {0, 0, true, false};
    if (places <= 127) return {power_of_two(places), 1, false, false};
    return {power_of_two(64), power_of_two(places - 64), false, true};
}

INLINE Ints quantised(Floats x, const Quantisation& by) {
    x = normal(x * by.first);
    if (by.needs_two) x = x * by.second;
    const Ints limit = Ints{} + 127;
    return largest_of(least_of(rounded(x), limit), -limit);
}

// Quantise 32 numbers, flushed or not; returns the code.
INLINE int32_t quantise_block(const Words* words, Ints* elements) {
    constexpr int parts = block / width;
    Ints magnitude = {};
    for (int part = 0; part < parts; ++part)
        magnitude = largest_of(magnitude, (Ints)(words[part] & ~sign_bit));
    const int32_t code = largest(magnitude) >> 23;
    const Quantisation by = quantisation(code);
    for (int part = 0; part < parts; ++part)
        elements[part] = by.is_zero ? Ints{} : quantised(flush(words[part]), by);
    return code;
}

} // namespace
} // namespace fpgapipe_model
