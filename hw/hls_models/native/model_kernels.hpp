// Prepared instructions, and the functions that compute them with one instruction set.
//
// `native_program.py` writes the numbers of an instruction in the order of these members.

#pragma once

#include <cstdint>

namespace fpgapipe_model {

constexpr int64_t lanes = 16;       // elements of a vector of the vector engine
constexpr int64_t block = 32;       // elements of a word of an operand
constexpr int64_t block_bytes = 34; // bytes of a block of MXINT8 in the scratchpad
constexpr int64_t vector_loops = 6;

constexpr int32_t code_nan = 255;
constexpr int32_t code_bias = 127;
constexpr int32_t element_fraction_bits = 6;

struct Loop {
    int64_t count, address, y, u;
};

// isa/address.py: OperandPattern; `first` is the number of skipped positions.
struct Operand {
    int64_t base, y, u, y_limit, u_limit, lanes_last, lanes_by_outer, subs, subs_last, blocks,
        first, walks_blocks, transposed, emit, emit_last, fp32;
    Loop outer[3], tap[3], pos[3];
};

struct ResultLoop {
    int64_t count, address, u;
};

// isa/address.py: ResultPattern.
struct Result {
    int64_t base, u_limit, fp32;
    ResultLoop outer[3], pos[3];
};

struct Extent {
    int64_t m, k, n, first, last, acc_base, acc_step, engine;
};

struct Source {
    int64_t base, y, u, y_limit, u_limit, format, broadcast;
    int64_t steps[3][vector_loops]; // of address, y and u
};

enum Format : int64_t { bf16, fp32, mxint8 };
enum Addend : int64_t { add_nothing, add_y, add_k, add_c };
enum Factor : int64_t { by_one, by_self, by_y, by_k, by_c };
enum Second : int64_t { second_nothing, second_y, second_square, second_k, second_c };
enum Test : int64_t { no_test, compares, draws };
enum Left : int64_t { left_x, left_y, left_s };
enum Right : int64_t { right_y, right_k, right_c, right_counter };
enum Choice : int64_t { choose_s, choose_x, choose_y, choose_k, choose_c, choose_zero };
enum Initial : int64_t { from_nothing, from_k, from_c };

// isa/vector_op.py: VectorOp. `inner` is a number of vectors, not of loops, `length` the number of
// terms of a sum, and `target_counts` are the loops without the reduced ones.
struct VectorOp {
    int64_t counts[vector_loops], inner, length, reduces;
    Source x, y;
    int64_t uses_y;
    int64_t counter, counter_steps[vector_loops];
    int64_t target_counts[vector_loops];
    int64_t target, target_u, target_u_limit, target_format;
    int64_t target_steps[2][vector_loops]; // of address and u
    int64_t k_base, k_pitch, k_step, num_k;
    int64_t takes_maximum, gives_index, negate_x, addend, negate_addend, factor, second,
        negate_second, test, left, outcomes, right, then, otherwise, initial, relu, function;
    int64_t threshold, first, key;
    int64_t is_register[5], constants[5];
};

// Distances by which the loops of an operand have moved address, y and u.
struct Place {
    int64_t address, y, u;
};

// What threads share that read an operand. Vectors are `stride` elements apart.
struct Reading {
    const Operand* operand;
    const Place* outers;
    const Place* taps;
    const Place* along;        // of the positions
    const int64_t* tap_starts; // vectors before a tap: of its block, or of its column of tiles
    int64_t num_outers, num_taps, positions, chunks, units;
    int64_t outer_vectors;  // vectors of one position of `outer`
    int64_t block_distance; // vectors of one part of a block, if the operand walks blocks
    const uint8_t* scratchpad;
    int64_t scratchpad_bytes;
    int64_t rows, stride;
    bool offset; // whether this is operand A, whose elements may be stored in another form
    void* elements;
    uint8_t* codes;
};

// A tile's weights in the form that the products of an instruction set take.
struct Product {
    Extent extent;
    int64_t rows, cols, depth, stride;
    int64_t a_tiles, b_tiles; // number of different tiles
    const void* a;
    const uint8_t* a_codes;
    const float* a_scales;
    const void* b;
    const uint8_t* b_codes;
    void* weights;   // of all tiles
    float* b_scales; // of all tiles, `groups * lanes` each
    float* accumulators;
    float* results; // of `groups * lanes` columns each
    bool is_safe;   // whether no term can overflow or vanish
    int64_t groups() const { return (cols + lanes - 1) / lanes; }
};

// State of a core that a VECTOR uses.
struct VectorRun {
    const uint8_t* scratchpad;
    int64_t scratchpad_bytes;
    float constants[5];
    uint64_t key[2];
    const int32_t* function_table; // c0, c1 and c2 of each row
};

struct Kernels {
    int64_t element_bytes;
    int64_t (*stride)(int64_t rows);
    int64_t (*weight_bytes)(int64_t rows); // of a group of 16 columns of a tile
    // Read some units of an operand; false if a word lies outside the scratchpad.
    bool (*read)(const Reading&, int64_t begin, int64_t end);
    void (*scales)(const uint8_t* codes, float* scales, int64_t count);
    void (*pack)(const Product&, int64_t begin, int64_t end); // tiles of weights
    void (*multiply)(const Product&, int64_t group, int64_t groups, int64_t begin, int64_t end);
    void (*write_results)(const Product&, const Result&, uint8_t* scratchpad, int64_t begin,
                          int64_t end, int64_t group, int64_t groups);
    // Compute the results from `begin` to `end`, in units of `inner` vectors.
    bool (*compute)(const VectorOp&, const VectorRun&, int64_t begin, int64_t end, float* out);
    void (*write)(const VectorOp&, const float* out, uint8_t* scratchpad, int64_t begin,
                  int64_t end);
};

extern const Kernels kernels_plain;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
#endif

// Deliberate faults, which only libraries for tests can have.
#ifdef FPGAPIPE_FAULTS
extern int fault;
inline bool faulty(int number) { return fault == number; }
#else
constexpr bool faulty(int) { return false; }
#endif

} // namespace fpgapipe_model
