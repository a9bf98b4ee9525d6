// GEMM: operands read and quantised, products of tiles, accumulators and results.

#pragma once

#include "model_lanes.hpp"

namespace fpgapipe_model {
namespace {

constexpr int parts = block / width; // of a word of an operand

#if defined(FPGAPIPE_AVX512)
// Elements have a byte. Those of operand A are stored plus 128, since the instruction for sums of
// products of bytes takes one unsigned operand; the weights' sums make up for it.
typedef int8_t Element;
constexpr int together = 4; // elements along the reduction that an instruction sums up
#else
typedef int16_t Element;
constexpr int together = 2;
#endif

int64_t stride_of(int64_t rows) { return rows < together ? together : rows; }
int64_t weight_bytes_of(int64_t rows) {
#if defined(FPGAPIPE_AVX512)
    return stride_of(rows) * lanes + lanes * 4; // and 128 times the sum of each column
#else
    return stride_of(rows) * lanes * 2;
#endif
}

INLINE void put_elements(Element* to, Ints x, bool offset) {
#if defined(FPGAPIPE_AVX512)
    save(to, bytes_of(offset ? x ^ 128 : x));
#else
    (void)offset;
    save(to, __builtin_convertvector(x, Shorts));
#endif
}

// Read a word of 32 elements as FP32; false if it begins outside the scratchpad.
INLINE bool read_word(const Reading& r, int64_t address, int64_t low, int64_t high, Words* words) {
    if (high <= low) {
        for (int part = 0; part < parts; ++part) words[part] = Words{};
        return true;
    }
    const int64_t size = r.scratchpad_bytes;
    if (address < 0 || address >= size) return false;
    const int64_t span = r.operand->fp32 ? 4 * block : 2 * block;
    const uint8_t* from = r.scratchpad + address;
    uint8_t wrapped[4 * block];
    if (address + span > size) {
        for (int64_t at = 0; at < span; ++at)
            wrapped[at] = r.scratchpad[(address + (faulty(1) ? at & ~1 : at)) % size];
        from = wrapped;
    }
    for (int part = 0; part < parts; ++part) {
        words[part] = r.operand->fp32 ? load<Words>(from + 4 * part * width)
                                      : widened(load<Halves>(from + 2 * part * width)) << 16;
    }
    if (low > 0 || high < block) {
        for (int part = 0; part < parts; ++part)
            words[part] &= lanes_between(low, high, part * width);
    }
    return true;
}

// Store the parts of a block among the vectors, `distance` vectors apart.
INLINE void put(const Reading& r, const Ints* elements, int32_t code, int64_t at, int64_t distance,
                int64_t subs) {
    Element* const all = static_cast<Element*>(r.elements);
    if (r.rows == block) {
        for (int part = 0; part < parts; ++part)
            put_elements(all + at * block + part * width, elements[part], r.offset);
        r.codes[at] = uint8_t(code);
        return;
    }
    Element whole[block];
    for (int part = 0; part < parts; ++part)
        put_elements(whole + part * width, elements[part], r.offset);
    for (int64_t sub = 0; sub < subs; ++sub, at += distance) {
        Element* to = all + at * r.stride;
        for (int64_t row = 0; row < r.rows; ++row) to[row] = whole[sub * r.rows + row];
        for (int64_t row = r.rows; row < r.stride; ++row) to[row] = 0;
        r.codes[at] = uint8_t(code);
    }
}

typedef uint8_t Sixteen __attribute__((vector_size(16)));

// Sixteen rows of sixteen bytes: four perfect shuffles of the rows make columns of them.
INLINE void transpose16(const uint8_t* from, uint8_t* to) {
    Sixteen rows[16], next[16];
    for (int row = 0; row < 16; ++row) rows[row] = load<Sixteen>(from + row * block);
#pragma GCC unroll 4
    for (int round = 0; round < 4; ++round) {
        for (int row = 0; row < 8; ++row) {
            const Sixteen low = rows[row], high = rows[row + 8];
            next[2 * row] = __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                                    21, 6, 22, 7, 23);
            next[2 * row + 1] = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12,
                                                        28, 13, 29, 14, 30, 15, 31);
        }
        for (int row = 0; row < 16; ++row) rows[row] = next[row];
    }
    for (int row = 0; row < 16; ++row) save(to + row * block, rows[row]);
}

void transpose(const uint8_t (*from)[block], uint8_t (*to)[block]) {
    for (int row = 0; row < block; row += 16)
        for (int column = 0; column < block; column += 16)
            transpose16(&from[row][column], &to[column][row]);
}

// The same as `put`, for elements in bytes.
INLINE void put_bytes(const Reading& r, const uint8_t* elements, int32_t code, int64_t at,
                      int64_t distance, int64_t subs) {
    Element* const all = static_cast<Element*>(r.elements);
    Element whole[block];
#if defined(FPGAPIPE_AVX512)
    const uint8_t added = r.offset ? 128 : 0;
#else
    const uint8_t added = 0;
#endif
    Element* const at_once = r.rows == block ? all + at * block : whole;
    for (int row = 0; row < block; ++row) at_once[row] = Element(int8_t(elements[row] ^ added));
    if (r.rows != block) {
        for (int64_t sub = 0; sub < subs; ++sub) {
            Element* const to = all + (at + sub * distance) * r.stride;
            for (int64_t row = 0; row < r.rows; ++row) to[row] = whole[sub * r.rows + row];
            for (int64_t row = r.rows; row < r.stride; ++row) to[row] = 0;
            r.codes[at + sub * distance] = uint8_t(code);
        }
        return;
    }
    r.codes[at] = uint8_t(code);
}

// Quantise the columns of a square of 32 words.
void put_columns(const Reading& r, const Words (*square)[parts], int64_t emit, int64_t at,
                 int64_t distance, int64_t subs) {
    alignas(64) float first[block], second[block];
    int32_t codes[block];
    bool needs_two = false;
    for (int part = 0; part < parts; ++part) {
        Ints magnitude = {};
        for (int row = 0; row < block; ++row)
            magnitude = largest_of(magnitude, (Ints)(square[row][part] & ~sign_bit));
        save(codes + part * width, magnitude >> 23);
    }
    for (int column = 0; column < block; ++column) {
        const Quantisation by = quantisation(codes[column]);
        first[column] = by.first;
        second[column] = by.second;
        needs_two |= by.needs_two;
    }
    alignas(64) uint8_t rows[block][block], columns[block][block];
    for (int part = 0; part < parts; ++part) {
        const Floats one = load<Floats>(first + part * width);
        const Floats two = load<Floats>(second + part * width);
        const Words ignored = (Words)(one == Floats{});
        const Ints limit = Ints{} + 127;
        for (int row = 0; row < block; ++row) {
            Floats x = normal(flush(square[row][part] & ~ignored) * one);
            if (needs_two) x = x * two;
            const Ints q = largest_of(least_of(rounded(x), limit), -limit);
            save(rows[row] + part * width, bytes_of(q));
        }
    }
    transpose(rows, columns);
    for (int64_t column = 0; column < emit; ++column, ++at)
        put_bytes(r, columns[column], codes[column], at, distance, subs);
}

bool read_unit(const Reading& r, int64_t unit) {
    const Operand& o = *r.operand;
    const int64_t chunk = unit % r.chunks;
    const int64_t tap = unit / r.chunks % r.num_taps;
    const int64_t outer = unit / r.chunks / r.num_taps;
    const bool tap_last = tap % o.tap[0].count == o.tap[0].count - 1;
    const bool outer_last = outer % o.outer[0].count == o.outer[0].count - 1;
    const int64_t limit = (o.lanes_by_outer ? outer_last : tap_last) ? o.lanes_last : block;
    const int64_t emit = tap_last ? o.emit_last : o.emit;
    int64_t begin, end, at, subs, distance;
    if (o.walks_blocks) {
        begin = chunk * block;
        end = begin + block;
        subs = chunk == o.blocks - 1 ? o.subs_last : o.subs;
        distance = r.block_distance;
        at = outer * r.outer_vectors + chunk * o.subs * distance + r.tap_starts[tap];
    } else {
        constexpr int64_t chunk_words = 8 * block;
        begin = chunk * chunk_words;
        end = begin + chunk_words < r.positions ? begin + chunk_words : r.positions;
        subs = tap_last ? o.subs_last : o.subs;
        distance = o.transposed ? r.positions / block * emit : r.positions;
        at = outer * r.outer_vectors + r.tap_starts[tap] +
             (o.transposed ? begin / block * emit : begin);
    }
    const Place& of_outer = r.outers[outer];
    const Place& of_tap = r.taps[tap];
    const int64_t address = o.base + of_outer.address + of_tap.address;
    const int64_t y = o.y + of_outer.y + of_tap.y, u = o.u + of_outer.u + of_tap.u;
    Words square[block][parts];
    for (int64_t position = begin; position < end; ++position) {
        const int64_t row = o.transposed ? position % block : 0;
        int64_t low = 0, high = 0, place = 0;
        if (position < r.positions) {
            const Place& along = r.along[position];
            const int64_t row_y = y + along.y, row_u = u + along.u;
            if (row_y >= 0 && row_y < o.y_limit) {
                low = row_u < 0 ? -row_u : 0;
                high = o.u_limit - row_u < limit ? o.u_limit - row_u : limit;
            }
            place = address + along.address;
        }
        if (!read_word(r, place, low, high, square[row])) return false;
        if (!o.transposed) {
            Ints elements[parts];
            const int32_t code = quantise_block(square[0], elements);
            put(r, elements, code, at, distance, subs);
            ++at;
        } else if (row == block - 1) {
            put_columns(r, square, emit, at, distance, subs);
            at += emit;
        }
    }
    return true;
}

bool read_units(const Reading& r, int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit)
        if (!read_unit(r, unit)) return false;
    return true;
}

// Factors 2**(code - 133) of blocks, whose products are the scales of sums if they are safe.
void scales_of(const uint8_t* codes, float* scales, int64_t count) {
    for (int64_t at = 0; at < count; ++at) {
        const uint32_t bits = codes[at] < 7 ? 0 : uint32_t(codes[at] - 6) << 23;
        std::memcpy(scales + at, &bits, sizeof bits);
    }
}

void pack_tiles(const Product& p, int64_t begin, int64_t end) {
    const int64_t groups = p.groups(), bytes = weight_bytes_of(p.rows);
    const Element* const b = static_cast<const Element*>(p.b);
    for (int64_t tile = begin; tile < end; ++tile) {
        scales_of(p.b_codes + tile * p.cols, p.b_scales + tile * groups * lanes, p.cols);
        for (int64_t group = 0; group < groups; ++group) {
            uint8_t* const to = static_cast<uint8_t*>(p.weights) + (tile * groups + group) * bytes;
            const int64_t left = p.cols - group * lanes, cols = (left < lanes ? left : lanes) - faulty(2);
            const int64_t steps = p.stride / together;
            const Element* const from = b + (tile * p.cols + group * lanes) * p.stride;
            for (int64_t step = 0; step < steps; ++step) {
                for (int64_t col = 0; col < lanes; ++col) {
                    const int32_t some =
                        col < cols ? load<int32_t>(from + col * p.stride + step * together) : 0;
                    save(to + (step * lanes + col) * 4, some);
                }
            }
#if defined(FPGAPIPE_AVX512)
            int32_t sums[lanes] = {};
            for (int64_t col = 0; col < cols; ++col) {
                int32_t sum = 0;
                for (int64_t row = 0; row < p.stride; ++row) sum += from[col * p.stride + row];
                sums[col] = -128 * sum;
            }
            std::memcpy(to + steps * lanes * 4, sums, sizeof sums);
#endif
        }
    }
}

// Add a vector's terms that may overflow, vanish or be NaN, at the columns of a group.
__attribute__((noinline)) void slow_terms(const int32_t* sums, int32_t a_code,
                                          const uint8_t* b_codes, int64_t cols, float* terms) {
    for (int64_t col = 0; col < cols; ++col) {
        const int32_t b_code = b_codes[col];
        if (a_code == code_nan || b_code == code_nan) {
            terms[col] = load<float>(&nan_bits);
            continue;
        }
        const uint64_t bits = uint64_t(a_code + b_code - 2 * (code_bias + 6) + 1023) << 52;
        terms[col] = narrowed(double(sums[col]) * load<double>(&bits));
    }
}

// Sums of products of a vector with the columns of `G` groups.
#if defined(FPGAPIPE_AVX512)
template <int Steps, int G>
struct Tile {
    __m512i weights[Steps][G], first[G];
    INLINE void take(const uint8_t* from, int64_t bytes) {
        for (int group = 0; group < G; ++group, from += bytes) {
            for (int step = 0; step < Steps; ++step)
                weights[step][group] = _mm512_loadu_si512(from + step * 64);
            first[group] = _mm512_loadu_si512(from + Steps * 64);
        }
    }
    INLINE void sums(const Element* vector, Ints (*out)[pieces]) const {
        __m512i total[G];
        for (int group = 0; group < G; ++group) total[group] = first[group];
#pragma GCC unroll 8
        for (int step = 0; step < Steps; ++step) {
            const __m512i four = _mm512_set1_epi32(load<int32_t>(vector + step * together));
            for (int group = 0; group < G; ++group)
                total[group] = _mm512_dpbusd_epi32(total[group], four, weights[step][group]);
        }
        for (int group = 0; group < G; ++group) out[group][0] = (Ints)total[group];
    }
};
#else
template <int Steps, int G>
struct Tile {
    const uint8_t* weights;
    int64_t bytes;
    INLINE void take(const uint8_t* from, int64_t size) {
        weights = from;
        bytes = size;
    }
    INLINE void sums(const Element* vector, Ints (*out)[pieces]) const {
        for (int group = 0; group < G; ++group) {
            const uint8_t* const from = weights + group * bytes;
            for (int piece = 0; piece < pieces; ++piece) {
                Ints total = {};
#pragma GCC unroll 16
                for (int step = 0; step < Steps; ++step) {
                    const void* at = from + (step * lanes + piece * width) * 4;
#if defined(FPGAPIPE_AVX2)
                    const __m256i two = _mm256_set1_epi32(load<int32_t>(vector + step * together));
                    total += (Ints)_mm256_madd_epi16(two, load<__m256i>(at));
#else
                    const int16_t* const pair = vector + step * together;
                    Shorts both[2];
                    std::memcpy(both, at, sizeof both);
                    for (int lane = 0; lane < width; ++lane) {
                        const int16_t* w = reinterpret_cast<const int16_t*>(both) + 2 * lane;
                        total[lane] += int32_t(pair[0]) * w[0] + int32_t(pair[1]) * w[1];
                    }
#endif
                }
                out[group][piece] = total;
            }
        }
    }
};
#endif

template <int Steps, int G>
void multiply_tiles(const Product& p, int64_t group, int64_t begin, int64_t end) {
    const Extent& e = p.extent;
    const int64_t groups = p.groups(), wide = groups * lanes, bytes = weight_bytes_of(p.rows);
    const int64_t left = p.cols - group * lanes;
    const bool is_whole = left >= G * lanes;
    const Element* const a = static_cast<const Element*>(p.a);
    Tile<Steps, G> weights;
    for (int64_t tile = 0; tile < e.n * e.k; ++tile) {
        const int64_t column = tile / e.k, step = tile % e.k;
        const int64_t a_tile = tile % p.a_tiles, b_tile = tile % p.b_tiles;
        const bool from_zero = e.first && step == 0, ends = step == e.k - 1;
        const bool gives = ends && e.last;
        // What accumulators keep is clean: the sums before the results, if these go elsewhere.
        const bool cleans = ends || step == e.k - 2;
        weights.take(static_cast<const uint8_t*>(p.weights) + (b_tile * groups + group) * bytes,
                     bytes);
        const float* const b_scales = p.b_scales + b_tile * wide + group * lanes;
        const uint8_t* const b_codes = p.b_codes + b_tile * p.cols + group * lanes;
        const int64_t cols = left < G * lanes ? left : G * lanes;
        int32_t b_least = 255, b_most = 0;
        if (!p.is_safe) {
            for (int64_t col = 0; col < cols; ++col) {
                const int32_t code = b_codes[col];
                if (code && code < b_least) b_least = code;
                if (code > b_most) b_most = code;
            }
        }
        const int64_t base = e.acc_base + column * e.acc_step;
        for (int64_t vector = begin; vector < end; ++vector) {
            const int64_t at = a_tile * e.m + vector;
            Ints sums[G][pieces];
            weights.sums(a + at * p.stride, sums);
            Floats terms[G][pieces];
            const int32_t code = p.a_codes[at];
            const bool is_safe =
                p.is_safe || faulty(3) ||
                (b_most != code_nan &&
                 (code == 0 || (code >= 7 && code != code_nan && b_least >= 7 &&
                                code + b_least >= 140 && code + b_most <= 374)));
            if (__builtin_expect(is_safe, 1)) {
                const Floats scale = all(p.a_scales[at]);
                for (int g = 0; g < G; ++g)
                    for (int piece = 0; piece < pieces; ++piece) {
                        const Floats of_b = load<Floats>(b_scales + g * lanes + piece * width);
                        terms[g][piece] =
                            __builtin_convertvector(sums[g][piece], Floats) * (scale * of_b);
                    }
            } else {
                alignas(64) int32_t some[G * lanes];
                alignas(64) float found[G * lanes] = {};
                std::memcpy(some, sums, sizeof some);
                slow_terms(some, code, b_codes, cols, found);
                std::memcpy(terms, found, sizeof terms);
            }
            const int64_t row = (base + vector) & (p.depth - 1) >> faulty(12);
            float* const line = p.accumulators + row * p.cols + group * lanes;
            float* const to =
                gives ? p.results + (column * e.m + vector) * wide + group * lanes : line;
            Floats old[G][pieces] = {};
            if (is_whole) {
                if (!from_zero) std::memcpy(old, line, sizeof old);
                for (int g = 0; g < G; ++g)
                    for (int piece = 0; piece < pieces; ++piece) {
                        Floats sum = add(old[g][piece], terms[g][piece]);
                        if (cleans) sum = clean(sum);
                        save(to + g * lanes + piece * width, sum);
                    }
                continue;
            }
            float some[G * lanes] = {};
            if (!from_zero) std::memcpy(some, line, size_t(cols) * 4);
            std::memcpy(old, some, sizeof old);
            for (int g = 0; g < G; ++g)
                for (int piece = 0; piece < pieces; ++piece)
                    save(some + g * lanes + piece * width,
                         clean(add(old[g][piece], terms[g][piece])));
            std::memcpy(to, some, size_t(gives ? G * lanes : cols) * 4);
        }
    }
}

template <int Steps>
void multiply_groups(const Product& p, int64_t group, int64_t groups, int64_t begin, int64_t end) {
    for (; groups >= 2; group += 2, groups -= 2) multiply_tiles<Steps, 2>(p, group, begin, end);
    if (groups) multiply_tiles<Steps, 1>(p, group, begin, end);
}

void multiply_product(const Product& p, int64_t group, int64_t groups, int64_t begin,
                      int64_t end) {
    switch (p.stride / together) {
        case 1: return multiply_groups<1>(p, group, groups, begin, end);
        case 2: return multiply_groups<2>(p, group, groups, begin, end);
        case 4: return multiply_groups<4>(p, group, groups, begin, end);
        case 8: return multiply_groups<8>(p, group, groups, begin, end);
#if !defined(FPGAPIPE_AVX512)
        case 16: return multiply_groups<16>(p, group, groups, begin, end);
#endif
    }
    __builtin_unreachable();
}

// Write the results of the vectors from `begin` to `end`, of some groups of columns.
void write_product(const Product& p, const Result& r, uint8_t* scratchpad, int64_t begin,
                   int64_t end, int64_t group, int64_t groups) {
    const int64_t num_pos = r.pos[0].count * r.pos[1].count * r.pos[2].count;
    const int64_t wide = p.groups() * lanes;
    const int64_t first = group * lanes;
    const int64_t stop = (group + groups) * lanes < p.cols ? (group + groups) * lanes : p.cols;
    for (int64_t vector = begin; vector < end;) {
        int64_t address = r.base, u = 0, left = vector / num_pos;
        for (const ResultLoop& loop : r.outer) {
            address += left % loop.count * loop.address;
            u += left % loop.count * loop.u;
            left /= loop.count;
        }
        const int64_t low = -u > first ? -u : first, high = r.u_limit - u < stop ? r.u_limit - u : stop;
        int64_t pos = vector % num_pos;
        const int64_t last = vector - pos + num_pos < end ? num_pos : pos + end - vector;
        vector += last - pos;
        int64_t i = pos % r.pos[0].count, outside = pos / r.pos[0].count;
        for (; pos < last; ++outside, i = 0) {
            const int64_t row = address + outside % r.pos[1].count * r.pos[1].address +
                                outside / r.pos[1].count * r.pos[2].address;
            for (; i < r.pos[0].count && pos < last; ++i, ++pos) {
                const int64_t place = row + i * r.pos[0].address;
                const float* const from = p.results + (vector - last + pos) * wide;
                if (r.fp32) {
                    if (high > low)
                        std::memcpy(scratchpad + (place & ~int64_t(3)) + 4 * low, from + low,
                                    size_t(high - low) * 4);
                } else {
                    uint16_t halves[32];
                    uint8_t* const to = scratchpad + (place & ~int64_t(1));
                    for (int64_t begin32 = low & ~int64_t(31); begin32 < high; begin32 += 32) {
                        const int64_t from32 = begin32 > low ? begin32 : low;
                        const int64_t to32 = begin32 + 32 < high ? begin32 + 32 : high;
                        const int64_t room = wide - begin32 < 32 ? wide - begin32 : 32;
                        for (int64_t col = 0; col < room; ++col)
                            halves[col] =
                                uint16_t(bf16_of(load<uint32_t>(from + begin32 + col)));
                        if (faulty(4)) halves[0] &= 0xFFFE;
                        if (to32 - from32 == 32)
                            std::memcpy(to + 2 * from32, halves, 64);
                        else if (to32 > from32)
                            std::memcpy(to + 2 * from32, halves + (from32 - begin32),
                                        size_t(to32 - from32) * 2);
                    }
                }
            }
        }
    }
}

} // namespace
} // namespace fpgapipe_model
