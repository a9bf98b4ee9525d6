// VECTOR: the lanes of isa/vector_op.py, reductions in the order of the loops, and writing.

#pragma once

#include "model_function.hpp"
#include "model_lanes.hpp"
#include "model_random.hpp"

namespace fpgapipe_model {
namespace {

struct Lanes {
    alignas(64) float at[lanes];
    INLINE Floats piece(int number) const { return load<Floats>(at + number * width); }
    INLINE void put(int number, Floats x) { save(at + number * width, x); }
};

INLINE uint32_t flushed(uint32_t bits) {
    const uint32_t magnitude = bits & ~sign_bit;
    return magnitude < 0x800000 ? bits & sign_bit : magnitude > infinity_bits ? nan_bits : bits;
}

// An element, with a subnormal number flushed; its bytes may wrap around at the scratchpad's end.
INLINE uint32_t read_element(const VectorRun& run, int64_t at, int64_t format) {
    const int64_t size = run.scratchpad_bytes, bytes = format == fp32 ? 4 : 2;
    uint32_t bits = 0;
    if (at + bytes > size) {
        for (int64_t byte = 0; byte < bytes; ++byte)
            bits |= uint32_t(run.scratchpad[(at + byte) % size]) << 8 * byte;
    } else {
        bits = format == fp32 ? load<uint32_t>(run.scratchpad + at)
                              : load<uint16_t>(run.scratchpad + at);
    }
    return flushed(format == fp32 ? bits : bits << 16);
}

// A vector near the end of the scratchpad, where its elements wrap around.
__attribute__((noinline)) void read_wrapped(const VectorRun& run, int64_t address, int64_t low,
                                            int64_t high, int64_t format, Lanes& to) {
    for (int64_t lane = low; lane < high; ++lane) {
        const int64_t at = (address & ~int64_t(1)) + lane * (format == fp32 ? 4 : 2);
        const uint32_t bits = read_element(run, at % run.scratchpad_bytes, format);
        std::memcpy(to.at + lane, &bits, sizeof bits);
    }
}

// Half a block of MXINT8.
__attribute__((noinline)) void read_half(const VectorRun& run, int64_t address, int64_t low,
                                         int64_t high, Lanes& to) {
    const int64_t size = run.scratchpad_bytes, start = address & ~int64_t(1);
    const int32_t code = run.scratchpad[(start + block) % size];
    for (int64_t lane = low; lane < high; ++lane) {
        const int64_t at = (address % 2 * lanes + lane + start) % size;
        const auto element = int8_t(run.scratchpad[at]);
        uint32_t bits = nan_bits;
        if (code != code_nan) {
            const uint64_t step = uint64_t(code - code_bias - element_fraction_bits + 1023) << 52;
            const float value = narrowed(double(element) * load<double>(&step));
            bits = flushed(load<uint32_t>(&value));
        }
        std::memcpy(to.at + lane, &bits, sizeof bits);
    }
}

// Read the lanes from `low` to `high`, with subnormals flushed; false if the vector lies outside.
INLINE bool read_vector(const VectorRun& run, int64_t address, int64_t low, int64_t high,
                        int64_t format, bool broadcast, Lanes& to) {
    const int64_t size = run.scratchpad_bytes;
    if (high > low && (address < 0 || address >= size)) return false;
    if (broadcast && format != mxint8 && high > low) {
        const Words bits = Words{} + read_element(run, address & ~int64_t(1), format);
        for (int piece = 0; piece < pieces; ++piece)
            to.put(piece, floats_of(bits & lanes_between(low, high, piece * width)));
        return true;
    }
    const int64_t span = format == fp32 ? 4 * lanes : 2 * lanes;
    if (high <= low || format == mxint8 || address + span > size) {
        std::memset(to.at, 0, sizeof to.at);
        if (high <= low) return true;
        if (format == mxint8)
            read_half(run, address, low, high, to);
        else
            read_wrapped(run, address, low, high, format, to);
        return true;
    }
    const uint8_t* const from = run.scratchpad + (address & ~int64_t(1));
    for (int piece = 0; piece < pieces; ++piece) {
        Words bits = format == fp32 ? load<Words>(from + 4 * piece * width)
                                    : widened(load<Halves>(from + 2 * piece * width)) << 16;
        if (low > 0 || high < lanes) bits &= lanes_between(low, high, piece * width);
        to.put(piece, clean(flush(bits)));
    }
    return true;
}

// Loops as an odometer, which moves some numbers.
template <int Numbers>
struct Odometer {
    const int64_t* counts;
    int64_t turns[vector_loops];
    int64_t now[Numbers];
    int64_t jumps[vector_loops][Numbers];

    void start(const int64_t* of_loops, const int64_t* const (&steps)[Numbers],
               const int64_t (&bases)[Numbers], int64_t position) {
        counts = of_loops;
        int64_t moved[Numbers] = {};
        for (int which = 0; which < Numbers; ++which) now[which] = bases[which];
        for (int64_t loop = 0; loop < vector_loops; ++loop) {
            turns[loop] = position % counts[loop];
            position /= counts[loop];
            for (int which = 0; which < Numbers; ++which) {
                const int64_t step = steps[which][loop];
                now[which] += turns[loop] * step;
                jumps[loop][which] = step - moved[which];
                moved[which] += (counts[loop] - 1) * step;
            }
        }
    }
    INLINE void move() {
        for (int64_t loop = 0; loop < vector_loops; ++loop) {
            if (++turns[loop] < counts[loop]) {
                for (int which = 0; which < Numbers; ++which) now[which] += jumps[loop][which];
                return;
            }
            turns[loop] = 0;
        }
    }
};

INLINE int64_t low_of(int64_t u) { return u < 0 ? (-u < lanes ? -u : lanes) : 0; }
INLINE int64_t high_of(int64_t u, int64_t limit) { return limit - u < lanes ? limit - u : lanes; }

bool compute_vectors(const VectorOp& op, const VectorRun& run, int64_t begin, int64_t end,
                     float* results) {
    const int64_t inner = op.inner, length = op.length;
    const int64_t first = begin * inner * length, last = end * inner * length;
    Odometer<7> odometer;
    odometer.start(op.counts,
                   {op.x.steps[0], op.x.steps[1], op.x.steps[2], op.y.steps[0], op.y.steps[1],
                    op.y.steps[2], op.counter_steps},
                   {op.x.base, op.x.y, op.x.u, op.y.base, op.y.y, op.y.u, op.counter}, first);
    const int64_t* const now = odometer.now;
    const Floats nothing = floats_of(Words{} + sign_bit), zero = {};
    const Floats c0 = all(run.constants[0]), c1 = all(run.constants[1]);
    const Floats c2 = all(run.constants[2]), c3 = all(run.constants[3]);
    const Floats c4 = all(run.constants[4]);
    const bool sums = op.reduces && !op.takes_maximum;
    Lanes x, y = {}, k[4] = {}, drawn = {};
    Draw draw(run.key, uint64_t(op.first) + uint64_t(first));
    // Of the maxima: the counter's values, and whether there is an element yet.
    alignas(64) float counted[64][lanes];
    alignas(64) uint32_t found[64][lanes];
    int64_t last_turn = -1, place = 0, step = 0;
    float* group = results + begin * inner * lanes;
    for (int64_t vector = first; vector < last; ++vector) {
        if (op.num_k && odometer.turns[vector_loops - 1] != last_turn) {
            last_turn = odometer.turns[vector_loops - 1];
            for (int64_t number = 0; number < op.num_k; ++number) {
                const int64_t at = op.k_base + number * op.k_pitch + last_turn * op.k_step;
                if (!read_vector(run, at, 0, lanes, fp32, false, k[number])) return false;
            }
        }
        const int64_t low = low_of(now[2]);
        const bool inside = now[1] >= 0 && now[1] < op.x.y_limit;
        const int64_t high = inside ? high_of(now[2], op.x.u_limit) : 0;
        if (!read_vector(run, now[0], low, high, op.x.format, op.x.broadcast, x)) return false;
        if (op.uses_y) {
            const bool y_inside = now[4] >= 0 && now[4] < op.y.y_limit;
            const int64_t y_high = y_inside ? high_of(now[5], op.y.u_limit) : 0;
            if (!read_vector(run, now[3], low_of(now[5]), y_high, op.y.format, op.y.broadcast, y))
                return false;
        }
        const Floats counter = all(float(now[6] & 255));
        if (op.test == draws) draw.next(uint32_t(op.threshold), drawn.at);
        float* const out = group + place * lanes;
        for (int piece = 0; piece < pieces; ++piece) {
            const Floats of_x = x.piece(piece), of_y = y.piece(piece), k3 = k[3].piece(piece);
            Floats d = op.negate_x ? -of_x : of_x;
            switch (op.addend) {
                case add_y: d = add(d, op.negate_addend ? -of_y : of_y); break;
                case add_k: d = add(d, k[0].piece(piece)); break;
                case add_c: d = add(d, c0); break;
            }
            switch (op.factor) {
                case by_self: d = multiply(d, d); break;
                case by_y: d = multiply(d, of_y); break;
                case by_k: d = multiply(d, k[1].piece(piece)); break;
                case by_c: d = multiply(d, c1); break;
            }
            if (op.second != second_nothing) {
                Floats q = of_y;
                switch (op.second) {
                    case second_square: q = multiply(of_y, of_y); break;
                    case second_k: q = multiply(of_y, k[2].piece(piece)); break;
                    case second_c: q = multiply(of_y, c2); break;
                }
                if (faulty(5)) q = floats_of(bits_of(q) & ~0xFFFFFu);
                d = add(d, op.negate_second ? -q : q);
            }
            const auto chosen = [&](int64_t choice) __attribute__((always_inline)) {
                switch (choice) {
                    case choose_s: return d;
                    case choose_x: return of_x;
                    case choose_y: return of_y;
                    case choose_k: return k3;
                    case choose_c: return c3;
                }
                return zero;
            };
            Floats t = chosen(op.otherwise);
            if (op.test != no_test) {
                Words held = {};
                if (op.test == draws) {
                    held = (Words)drawn.piece(piece);
                } else {
                    const Floats a = op.left == left_x ? of_x : op.left == left_y ? of_y : d;
                    const Floats b = op.right == right_y   ? of_y
                                     : op.right == right_k ? k3
                                     : op.right == right_c ? c3
                                                           : counter;
                    const Words less = (Words)(a < b), equal = (Words)(a == b);
                    const Words greater = (Words)(a > b);
                    if (op.outcomes & 1) held |= less;
                    if (op.outcomes & 2) held |= equal;
                    if (op.outcomes & 4) held |= greater;
                    if (op.outcomes & 8) held |= ~(less | equal | greater);
                    if (faulty(6)) held &= ~equal;
                }
                t = held ? chosen(op.then) : t;
            }
            const Floats start = op.initial == from_k   ? k3
                                 : op.initial == from_c ? c4
                                                        : nothing;
            if (!op.reduces) {
                save(out + piece * width, clean(op.initial == from_nothing ? t : add(t, start)));
                continue;
            }
            const Words there = lanes_between(low, high, piece * width);
            if (sums) {
                const Floats old = step ? load<Floats>(out + piece * width) : start;
                Floats total = add(old, there ? t : nothing);
                if (faulty(7) && step == 2) total = old;
                save(out + piece * width, step == length - 1 ? clean(total) : total);
                continue;
            }
            const int at = piece * width;
            Floats best = floats_of(Words{} + (infinity_bits | sign_bit)), index = zero;
            Words any = {};
            if (step) {
                best = load<Floats>(out + at);
                index = load<Floats>(&counted[place][at]);
                any = load<Words>(&found[place][at]);
            }
            const Words larger = faulty(8) ? (Words)(t >= best) : (Words)(t > best);
            const Words better = there & (~any | larger | (Words)(t != t));
            best = better ? t : best;
            index = better ? counter : index;
            save(&counted[place][at], index);
            save(&found[place][at], any | there);
            if (step == length - 1) best = op.gives_index ? index : clean(best);
            save(out + at, best);
        }
        if (++place == inner) {
            place = 0;
            if (++step == length) {
                step = 0;
                group += inner * lanes;
            }
        }
        odometer.move();
    }
    float* const out = results + begin * inner * lanes;
    const int64_t number = (end - begin) * inner * lanes;
    if (op.relu) {
        for (int64_t at = 0; at < number; at += width) {
            const Words bits = load<Words>(out + at);
            save(out + at, (Ints)bits < 0 ? Words{} : bits);
        }
    }
    if (op.function) apply(int(op.function), run.function_table, out, number);
    return true;
}

// Write half a block or, from its second half on, the block.
struct BlockWriter {
    alignas(64) uint32_t words[block];
    bool found = false;

    void put(const uint32_t* bits, int64_t low, int64_t high, int64_t half) {
        for (int64_t lane = 0; lane < lanes; ++lane)
            words[half * lanes + lane] = lane >= low && lane < high ? bits[lane] : 0;
        found = low < high || (half && found);
    }
    void write(uint8_t* to) const {
        if (!found) return;
        constexpr int parts = block / width;
        Words some[parts];
        Ints elements[parts];
        std::memcpy(some, words, sizeof some);
        const int32_t code = quantise_block(some, elements);
        for (int part = 0; part < parts; ++part)
            save(to + part * width, bytes_of(elements[part]));
        to[block] = uint8_t(code);
        to[block + 1] = 0;
    }
};

void write_vectors(const VectorOp& op, const float* results, uint8_t* scratchpad, int64_t begin,
                   int64_t end) {
    // Where results overlap, the order matters: the model writes all lower halves of FP32, then all
    // upper ones. It is the same to write whole numbers in order, if they are aligned.
    bool aligned = op.target % 4 == 0;
    for (int64_t loop = 0; loop < vector_loops; ++loop)
        aligned &= op.target_counts[loop] == 1 || op.target_steps[0][loop] % 4 == 0;
    const int64_t passes = op.target_format == fp32 && !aligned ? 2 : 1;
    for (int64_t pass = 0; pass < passes; ++pass) {
        Odometer<2> odometer;
        odometer.start(op.target_counts, {op.target_steps[0], op.target_steps[1]},
                       {op.target, op.target_u}, begin);
        BlockWriter blocks;
        for (int64_t row = begin; row < end; ++row, odometer.move()) {
            const int64_t low = low_of(odometer.now[1]);
            const int64_t high = high_of(odometer.now[1], op.target_u_limit);
            const float* const from = results + row * lanes;
            if (op.target_format == mxint8) {
                const int64_t half = row & 1;
                blocks.put(reinterpret_cast<const uint32_t*>(from), low, high, half);
                if (half) blocks.write(scratchpad + (odometer.now[0] & ~int64_t(1)));
                continue;
            }
            if (high <= low) continue;
            uint8_t* const to = scratchpad + (odometer.now[0] & ~int64_t(1));
            if (op.target_format == fp32) {
                if (passes == 1) {
                    std::memcpy(to + 4 * low, from + low, size_t(high - low) * 4);
                    continue;
                }
                for (int64_t lane = low; lane < high; ++lane) {
                    const uint32_t word = load<uint32_t>(from + lane) >> 16 * pass;
                    save(to + 4 * lane + 2 * pass, uint16_t(word));
                }
                continue;
            }
            uint16_t halves[lanes];
            for (int64_t lane = 0; lane < lanes; ++lane)
                halves[lane] = uint16_t(bf16_of(load<uint32_t>(from + lane)));
            if (high - low == lanes)
                std::memcpy(to, halves, sizeof halves);
            else
                std::memcpy(to + 2 * low, halves + low, size_t(high - low) * 2);
        }
    }
}

} // namespace
} // namespace fpgapipe_model
