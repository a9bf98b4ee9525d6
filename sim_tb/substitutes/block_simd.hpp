// Instruction sets of the processor that the substituted blocks use, chosen when a block is made.
//
// The library holds the code for all of them, so machines with different processors may share it.
// FPGAPIPE_SIMD in the environment (plain, avx2 or avx512) asks for one at most; tests use it.

#pragma once

// Verilator's files are compiled without this; the blocks' loops are made for it.
#pragma GCC optimize("tree-loop-vectorize")

#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define FPGAPIPE_AVX2 __attribute__((target("avx2,bmi2")))
#define FPGAPIPE_AVX512 \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx2,bmi2")))
#endif

namespace fpgapipe {

enum class Simd { plain, avx2, avx512 };

inline Simd best_simd() {
    Simd best = Simd::plain;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) {
        best = Simd::avx2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512cd")) {
            best = Simd::avx512;
        }
    }
#endif
    if (const char* asked = std::getenv("FPGAPIPE_SIMD")) {
        if (!std::strcmp(asked, "plain")) return Simd::plain;
        if (!std::strcmp(asked, "avx2") && best == Simd::avx512) return Simd::avx2;
    }
    return best;
}

// Whether a block has a deliberate fault, which only libraries for tests can have.
inline bool faulty([[maybe_unused]] const char* block) {
#ifdef FPGAPIPE_FAULTS
    const char* asked = std::getenv("FPGAPIPE_FAULT");
    return asked && !std::strcmp(asked, block);
#else
    return false;
#endif
}

}  // namespace fpgapipe
