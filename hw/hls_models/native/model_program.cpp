// Programs of a core, prepared for many runs: `fpgapipe.hw.hls_models.native.native_program`.
//
// Nothing here decides about a bit of a result; model_kernels.cpp does. Steps that are not prepared,
// or that would access bytes outside the scratchpad, are left to Python, with nothing changed.

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "model_kernels.hpp"
#include "model_threads.hpp"

namespace fpgapipe_model {

#ifdef FPGAPIPE_FAULTS
int fault = 0;
#endif

namespace {

constexpr int64_t word_bytes = 64;

// The best kernels for this processor, but for what is asked for.
const Kernels& best_kernels(const char* asked) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vnni");
    if (!std::strcmp(asked, "plain")) return kernels_plain;
    if (has_avx512 && std::strcmp(asked, "avx2")) return kernels_avx512;
    if (has_avx2) return kernels_avx2;
#endif
    return kernels_plain;
}

// Memory for intermediate results, which is kept for the next instruction.
class Room {
  public:
    template <typename T>
    T* take(int64_t count) {
        const size_t size = (size_t(count) * sizeof(T) + 127) / 64 * 64;
        if (size > size_) {
            std::free(bytes_);
            bytes_ = std::aligned_alloc(64, size);
            size_ = bytes_ ? size : 0;
            if (!bytes_) throw std::bad_alloc();
        }
        return static_cast<T*>(bytes_);
    }
    ~Room() { std::free(bytes_); }

  private:
    void* bytes_ = nullptr;
    size_t size_ = 0;
};

enum Kind : int64_t { in_python = 0, load = 2, store = 3, gemm = 4, vector = 5 };

struct Step {
    int64_t kind;
    union {
        struct {
            int64_t memory, scratchpad, row_bytes, rows, row_memory, row_scratchpad, planes,
                plane_memory, plane_scratchpad;
            int64_t span_begin, span_end; // of the memory
        } move;
        struct {
            int64_t a, a_base, b, b_base, result, result_base;
            Extent extent;
        } gemm;
        struct {
            int64_t op, x, y, target, k, first;
        } vector;
        int64_t room[15];
    };
};
static_assert(sizeof(Step) == 16 * sizeof(int64_t));

struct State {
    uint8_t* memory;
    int64_t memory_bytes, has_plain_memory;
    uint8_t* scratchpad;
    float* accumulators[4];
    int64_t scalars[16];
    int64_t nan;
};

int64_t size_of(const Loop (&nest)[3]) { return nest[0].count * nest[1].count * nest[2].count; }

int64_t vectors_of_outer(const Operand& o) {
    const int64_t positions = size_of(o.pos) - o.first, taps = size_of(o.tap);
    int64_t total = 0;
    for (int64_t tap = 0; tap < taps; ++tap) {
        const bool last = tap % o.tap[0].count == o.tap[0].count - 1;
        const int64_t emit = last ? o.emit_last : o.emit;
        if (o.walks_blocks)
            total += o.transposed ? emit : block;
        else
            total += (last ? o.subs_last : o.subs) *
                     (o.transposed ? positions / block * emit : positions);
    }
    return o.walks_blocks ? total * (o.subs * (o.blocks - 1) + o.subs_last) : total;
}

void places(const Loop (&nest)[3], int64_t first, int64_t count, Place* to) {
    const auto at = [&](int64_t position) {
        Place moved{};
        for (const Loop& loop : nest) {
            const int64_t turn = position % loop.count;
            position /= loop.count;
            moved.address += turn * loop.address;
            moved.y += turn * loop.y;
            moved.u += turn * loop.u;
        }
        return moved;
    };
    const Place start = at(first);
    for (int64_t position = 0; position < count;) {
        Place moved = at(first + position);
        moved = {moved.address - start.address, moved.y - start.y, moved.u - start.u};
        const int64_t left = nest[0].count - (first + position) % nest[0].count;
        const int64_t end = position + left < count ? position + left : count;
        for (; position < end; ++position) {
            to[position] = moved;
            moved.address += nest[0].address;
            moved.y += nest[0].y;
            moved.u += nest[0].u;
        }
    }
}

// An operand that is read: its vectors, without repetitions of all of them.
struct ReadOperand {
    Room outer_room, tap_room, start_room, along_room, element_room, code_room;
    Reading reading{};
    int64_t prepared = -1; // number of the operand whose places are there
    int64_t vectors = 0;
};

// Loops that write some bytes each: whether no two of these overlap. It may be said of more.
bool overlap(const int64_t* counts, const int64_t* steps, int64_t loops, int64_t width) {
    int64_t extent = width;
    bool used[vector_loops] = {};
    for (;;) {
        int64_t next = -1;
        for (int64_t loop = 0; loop < loops; ++loop) {
            if (used[loop] || counts[loop] == 1) continue;
            if (next < 0 || std::llabs(steps[loop]) < std::llabs(steps[next])) next = loop;
        }
        if (next < 0) return false;
        used[next] = true;
        if (std::llabs(steps[next]) < extent) return true;
        extent += std::llabs(steps[next]) * (counts[next] - 1);
    }
}

class Program {
  public:
    Program(int64_t rows, int64_t cols, int64_t depth, int64_t scratchpad_bytes,
            const char* instruction_set)
        : kernels_(best_kernels(instruction_set)), rows_(rows), cols_(cols), depth_(depth),
          size_(scratchpad_bytes) {}

    void set_table(const int32_t* table, int64_t count) { table_.assign(table, table + count); }

    int64_t add(const Operand& operand) {
        operands_.push_back(operand);
        outer_vectors_.push_back(vectors_of_outer(operand));
        return int64_t(operands_.size()) - 1;
    }
    int64_t add(const Result& result) {
        results_.push_back(result);
        return int64_t(results_.size()) - 1;
    }
    int64_t add(const VectorOp& op) {
        ops_.push_back(op);
        return int64_t(ops_.size()) - 1;
    }

    // Take the steps, which stay where they are; those that are left to Python are marked.
    void take(Step* steps, int64_t count) {
        steps_ = steps;
        count_ = count;
        for (int64_t index = 0; index < count; ++index) {
            Step& step = steps[index];
            const bool can = step.kind == gemm     ? can_multiply(step)
                             : step.kind == vector ? can_compute(step)
                             : step.kind == load   ? can_move(step)
                             : step.kind == store  ? can_move(step)
                                                   : false;
            if (!can) step.kind = in_python;
        }
    }

    int64_t run(State& state, int64_t index, const int64_t* spans, int64_t num_spans,
                bool is_checked) {
        const Arithmetic arithmetic;
        for (; index < count_; ++index) {
            const Step& step = steps_[index];
            if (num_spans && (step.kind == load || step.kind == store)) {
                if (!is_checked) return index;
                for (int64_t span = 0; span < num_spans; ++span) {
                    if (spans[2 * span] < step.move.span_end &&
                        step.move.span_begin < spans[2 * span + 1])
                        return index;
                }
            }
            const bool done = step.kind == gemm     ? multiply(step, state)
                              : step.kind == vector ? compute(step, state)
                              : step.kind == load   ? move<true>(step, state)
                              : step.kind == store  ? move<false>(step, state)
                                                    : false;
            if (!done) return index;
        }
        return index;
    }

  private:
    // LOAD and STORE -----------------------------------------------------------------------------

    static int64_t floor_word(int64_t at) { return at & ~(word_bytes - 1); }

    template <bool loads, typename Visit>
    static bool visit_rows(const Step& step, const Visit& visit) {
        const auto& t = step.move;
        for (int64_t plane = 0; plane <= t.planes; ++plane) {
            for (int64_t row = 0; row <= t.rows; ++row) {
                int64_t far = t.memory + plane * t.plane_memory + row * t.row_memory;
                int64_t near = t.scratchpad + plane * t.plane_scratchpad + row * t.row_scratchpad;
                int64_t bytes = t.row_bytes;
                if (loads) {
                    const int64_t end = floor_word(far + bytes + word_bytes - 1);
                    far = floor_word(far);
                    near = floor_word(near);
                    bytes = end - far;
                }
                if (!visit(far, near, bytes)) return false;
            }
        }
        return true;
    }

    // Store the bytes of memory that the step uses, and return whether the scratchpad has its bytes.
    bool can_move(Step& step) {
        int64_t low = INT64_MAX, high = 0;
        const auto fits = [&](int64_t far, int64_t near, int64_t bytes) {
            low = far < low ? far : low;
            high = far + bytes > high ? far + bytes : high;
            return near >= 0 && near <= size_ - bytes;
        };
        auto& t = step.move;
        const int64_t rows = t.rows * t.row_memory, planes = t.planes * t.plane_memory;
        t.span_begin = t.memory + (rows < 0 ? rows : 0) + (planes < 0 ? planes : 0);
        t.span_end = t.memory + (rows > 0 ? rows : 0) + (planes > 0 ? planes : 0) + t.row_bytes;
        const bool can = step.kind == load ? visit_rows<true>(step, fits)
                                           : visit_rows<false>(step, fits);
        least_.resize(count_);
        most_.resize(count_);
        least_[&step - steps_] = low;
        most_[&step - steps_] = high;
        return can;
    }

    template <bool loads>
    bool move(const Step& step, State& state) {
        const int64_t index = &step - steps_;
        if (!state.has_plain_memory || least_[index] < 0 || most_[index] > state.memory_bytes)
            return false;
        return visit_rows<loads>(step, [&](int64_t far, int64_t near, int64_t bytes) {
            if (loads)
                std::memcpy(state.scratchpad + near, state.memory + far, size_t(bytes));
            else
                std::memcpy(state.memory + far, state.scratchpad + near,
                            size_t(bytes - (faulty(11) && bytes % 4 == 1)));
            return true;
        });
    }

    // GEMM ---------------------------------------------------------------------------------------

    bool can_multiply(const Step& step) {
        const auto& g = step.gemm;
        const Extent& e = g.extent;
        const Operand &a = operands_[g.a], &b = operands_[g.b];
        for (const Operand* each : {&a, &b}) {
            const int64_t subs = each->subs > each->subs_last ? each->subs : each->subs_last;
            if (subs * rows_ > block) return false;
        }
        if (size_of(a.outer) * outer_vectors_[g.a] != e.n * e.k * e.m) return false;
        if (size_of(b.outer) * outer_vectors_[g.b] != e.n * e.k * cols_) return false;
        return !e.last || can_write(results_[g.result], g.result_base, e.n * e.m);
    }

    // Whether all results lie in the scratchpad; those close to its end are left to Python.
    bool can_write(const Result& r, int64_t base, int64_t vectors) {
        int64_t outers = 1, positions = 1, low = base, high = base;
        for (int loop = 0; loop < 3; ++loop) {
            outers *= r.outer[loop].count;
            positions *= r.pos[loop].count;
            for (const ResultLoop* each : {&r.outer[loop], &r.pos[loop]}) {
                const int64_t moved = (each->count - 1) * each->address;
                (moved < 0 ? low : high) += moved;
            }
        }
        if (outers * positions != vectors) return false;
        return low >= 0 && high + cols_ * (r.fp32 ? 4 : 2) <= size_;
    }

    // Read an operand; false if a word lies outside the scratchpad.
    bool read(ReadOperand& to, int64_t number, int64_t base, bool offset, int64_t group,
              const State& state) {
        Operand& o = operands_[number];
        o.base = base;
        Reading& r = to.reading;
        if (to.prepared != number) {
            to.prepared = number;
            r.num_outers = size_of(o.outer);
            r.num_taps = size_of(o.tap);
            r.positions = size_of(o.pos) - o.first;
            r.outer_vectors = outer_vectors_[number];
            bool repeats = r.outer_vectors % group == 0 && (!o.lanes_by_outer || o.lanes_last == block);
            for (const Loop& loop : o.outer)
                repeats &= loop.count == 1 || !(loop.address || loop.y || loop.u);
            if (repeats) r.num_outers = 1;
            Place* const outers = to.outer_room.take<Place>(r.num_outers);
            Place* const taps = to.tap_room.take<Place>(r.num_taps);
            Place* const along = to.along_room.take<Place>(r.positions);
            int64_t* const starts = to.start_room.take<int64_t>(r.num_taps);
            places(o.outer, 0, r.num_outers, outers);
            places(o.tap, 0, r.num_taps, taps);
            places(o.pos, o.first, r.positions, along);
            int64_t total = 0;
            for (int64_t tap = 0; tap < r.num_taps; ++tap) {
                const bool last = tap % o.tap[0].count == o.tap[0].count - 1;
                const int64_t emit = last ? o.emit_last : o.emit;
                starts[tap] = total;
                if (o.walks_blocks)
                    total += o.transposed ? emit : block;
                else
                    total += (last ? o.subs_last : o.subs) *
                             (o.transposed ? r.positions / block * emit : r.positions);
            }
            r.outers = outers;
            r.taps = taps;
            r.along = along;
            r.tap_starts = starts;
            r.block_distance = total;
            constexpr int64_t chunk_words = 8 * block;
            r.chunks = o.walks_blocks ? o.blocks : (r.positions + chunk_words - 1) / chunk_words;
            r.units = r.num_outers * r.num_taps * r.chunks;
            to.vectors = r.num_outers * r.outer_vectors;
        }
        r.operand = &o;
        r.scratchpad = state.scratchpad;
        r.scratchpad_bytes = size_;
        r.rows = rows_;
        r.stride = kernels_.stride(rows_);
        r.offset = offset;
        r.elements = to.element_room.take<uint8_t>(to.vectors * r.stride * kernels_.element_bytes);
        r.codes = to.code_room.take<uint8_t>(to.vectors);
        std::atomic<bool> inside{true};
        const int64_t words = o.walks_blocks ? block : r.positions / r.chunks;
        Threads::all().share(r.units, words * 20, [&](int64_t begin, int64_t end) {
            if (!kernels_.read(r, begin, end)) inside = false;
        });
        return inside;
    }

    bool multiply(const Step& step, State& state) {
        const auto& g = step.gemm;
        const Extent& e = g.extent;
        if (!read(a_, g.a, g.a_base, true, e.m, state)) return false;
        if (!read(b_, g.b, g.b_base, false, cols_, state)) return false;
        Product p{};
        p.extent = e;
        p.rows = rows_;
        p.cols = cols_;
        p.depth = depth_;
        p.stride = kernels_.stride(rows_);
        p.a = a_.reading.elements;
        p.a_codes = a_.reading.codes;
        p.b = b_.reading.elements;
        p.b_codes = b_.reading.codes;
        p.a_tiles = a_.vectors / e.m;
        p.b_tiles = b_.vectors / cols_;
        const int64_t groups = p.groups(), wide = groups * lanes;
        p.weights = weight_room_.take<uint8_t>(p.b_tiles * groups * kernels_.weight_bytes(rows_));
        p.b_scales = b_scale_room_.take<float>(p.b_tiles * wide);
        float* const a_scales = a_scale_room_.take<float>(a_.vectors);
        p.a_scales = a_scales;
        p.accumulators = state.accumulators[e.engine];
        p.results = e.last ? result_room_.take<float>(e.n * e.m * wide) : nullptr;
        const Range of_a = range(p.a_codes, a_.vectors), of_b = range(p.b_codes, b_.vectors);
        if (of_a.has_nan || of_b.has_nan) state.nan = 1;
        // Codes of zeros do not matter. Sums have less than 20 bits.
        p.is_safe = of_a.least >= 7 && of_b.least >= 7 && of_a.least + of_b.least >= 140 &&
                    of_a.most + of_b.most <= 374 && !of_a.has_nan && !of_b.has_nan;
        kernels_.scales(p.a_codes, a_scales, a_.vectors);
        Threads& threads = Threads::all();
        threads.share(p.b_tiles, cols_ * 20, [&](int64_t begin, int64_t end) {
            kernels_.pack(p, begin, end);
        });
        // Columns of the array are independent. So are vectors, if each has accumulators of its own.
        const int64_t apart = e.acc_step & (depth_ - 1);
        const bool splits =
            e.m <= depth_ && (e.n == 1 || apart == 0 ||
                              (apart >= e.m && (e.n - 1) * apart + e.m <= depth_));
        const int64_t tiles = e.n * e.k;
        if (splits && e.m >= 8) {
            threads.share(e.m, tiles * groups * 6, [&](int64_t begin, int64_t end) {
                kernels_.multiply(p, 0, groups, begin, end);
            });
        } else {
            threads.share(groups, tiles * e.m * 6, [&](int64_t begin, int64_t end) {
                kernels_.multiply(p, begin, end - begin, 0, e.m);
            });
        }
        if (!e.last) return true;
        Result r = results_[g.result];
        r.base = g.result_base;
        int64_t counts[6], steps[6];
        for (int loop = 0; loop < 3; ++loop) {
            counts[loop] = r.pos[loop].count;
            steps[loop] = r.pos[loop].address;
            counts[3 + loop] = r.outer[loop].count;
            steps[3 + loop] = r.outer[loop].address;
        }
        const auto write = [&](int64_t begin, int64_t end) {
            kernels_.write_results(p, r, state.scratchpad, begin, end, 0, groups);
        };
        const int64_t vectors = e.n * e.m;
        const int64_t width = cols_ * (r.fp32 ? 4 : 2);
        if (overlap(counts, steps, 6, width))
            write(0, vectors);
        else
            threads.share(vectors, groups * 8, write);
        return true;
    }

    struct Range {
        int32_t least = 254, most = 0; // codes of blocks that are not zero
        bool has_nan = false;
    };

    static Range range(const uint8_t* codes, int64_t count) {
        uint8_t least = 255, most = 0; // a code of zero counts as 256 here
        for (int64_t at = 0; at < count; ++at) {
            const uint8_t before = uint8_t(codes[at] - 1);
            least = before < least ? before : least;
            most = codes[at] > most ? codes[at] : most;
        }
        return {least == 255 ? 254 : least + 1, most, most == code_nan};
    }

    // VECTOR -------------------------------------------------------------------------------------

    static void bytes_of(const VectorOp& op, int64_t& element, int64_t& width) {
        element = op.target_format == fp32 ? 4 : 2;
        width = op.target_format == mxint8 ? block_bytes : element * lanes;
    }

    int64_t num_results(const VectorOp& op) const {
        int64_t total = 1;
        for (const int64_t count : op.target_counts) total *= count;
        return total;
    }

    // Whether all results lie in the scratchpad, apart from lanes that are not written.
    bool can_compute(const Step& step) {
        VectorOp& op = ops_[step.vector.op];
        int64_t low = step.vector.target, high = low, element, width;
        for (int64_t loop = 0; loop < vector_loops; ++loop) {
            const int64_t moved = (op.target_counts[loop] - 1) * op.target_steps[0][loop];
            (moved < 0 ? low : high) += moved;
        }
        bytes_of(op, element, width);
        if (low >= 0 && high + width <= size_) return true;
        const int64_t count = num_results(op);
        bool found = false;
        for (int64_t row = 0; row < count; ++row) {
            int64_t address = step.vector.target, u = op.target_u, left = row;
            for (int64_t loop = 0; loop < vector_loops; ++loop) {
                const int64_t turn = left % op.target_counts[loop];
                left /= op.target_counts[loop];
                address += turn * op.target_steps[0][loop];
                u += turn * op.target_steps[1][loop];
            }
            const int64_t from = u < 0 ? -u : 0;
            const int64_t to = op.target_u_limit - u < lanes ? op.target_u_limit - u : lanes;
            if (op.target_format == mxint8) {
                found = from < to || (row % 2 && found);
                if (row % 2 && found && (address - 1 < 0 || address - 1 + width > size_))
                    return false;
            } else if (from < to && (address + from * element < 0 ||
                                     address + to * element > size_)) {
                return false;
            }
        }
        return true;
    }

    bool compute(const Step& step, State& state) {
        const auto& v = step.vector;
        VectorOp& op = ops_[v.op];
        op.x.base = v.x;
        op.y.base = v.y;
        op.target = v.target;
        op.k_base = v.k;
        op.first = v.first;
        VectorRun run{state.scratchpad, size_, {}, {}, table_.data()};
        for (int number = 0; number < 5; ++number) {
            const auto bits = uint32_t(op.is_register[number]
                                           ? state.scalars[op.constants[number]]
                                           : op.constants[number]);
            const uint32_t magnitude = bits & 0x7FFFFFFF;
            const uint32_t flushed = magnitude < 0x800000     ? bits & 0x80000000
                                     : magnitude > 0x7F800000 ? 0x7FC00000
                                                              : bits;
            std::memcpy(&run.constants[number], &flushed, sizeof flushed);
        }
        if (op.test == draws) {
            run.key[0] = uint64_t(state.scalars[op.key]);
            run.key[1] = uint64_t(state.scalars[op.key + 1]);
        }
        const int64_t results = num_results(op), units = results / op.inner;
        float* const out = vector_room_.take<float>(results * lanes);
        std::atomic<bool> inside{true};
        Threads& threads = Threads::all();
        const int64_t unit_ns = op.inner * (op.length * 20 + (op.function ? 200 : 0));
        threads.share(units, unit_ns, [&](int64_t begin, int64_t end) {
            if (!kernels_.compute(op, run, begin, end, out)) inside = false;
        });
        if (!inside) return false;
        int64_t element, width;
        bytes_of(op, element, width);
        const auto write = [&](int64_t begin, int64_t end) {
            kernels_.write(op, out, state.scratchpad, begin, end);
        };
        if (op.target_format == mxint8 ||
            overlap(op.target_counts, op.target_steps[0], vector_loops, width))
            write(0, results);
        else
            threads.share(results, 10, write);
        return true;
    }

    const Kernels& kernels_;
    const int64_t rows_, cols_, depth_, size_;
    std::vector<int32_t> table_; // coefficients of functions
    std::vector<Operand> operands_;
    std::vector<int64_t> outer_vectors_;
    std::vector<Result> results_;
    std::vector<VectorOp> ops_;
    Step* steps_ = nullptr;
    int64_t count_ = 0;
    std::vector<int64_t> least_, most_; // bytes of memory that moves use
    ReadOperand a_, b_;
    Room weight_room_, a_scale_room_, b_scale_room_, result_room_, vector_room_;
};

} // namespace
} // namespace fpgapipe_model

using namespace fpgapipe_model;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* fpgapipe_model_create(int64_t rows, int64_t cols, int64_t depth,
                                   int64_t scratchpad_bytes, const char* instruction_set) {
    return new Program(rows, cols, depth, scratchpad_bytes, instruction_set);
}
EXPORT void fpgapipe_model_table(void* program, const int32_t* table, int64_t count) {
    static_cast<Program*>(program)->set_table(table, count);
}
EXPORT void fpgapipe_model_destroy(void* program) { delete static_cast<Program*>(program); }
EXPORT int64_t fpgapipe_model_operand(void* program, const Operand* operand) {
    return static_cast<Program*>(program)->add(*operand);
}
EXPORT int64_t fpgapipe_model_result(void* program, const Result* result) {
    return static_cast<Program*>(program)->add(*result);
}
EXPORT int64_t fpgapipe_model_vector(void* program, const VectorOp* op) {
    return static_cast<Program*>(program)->add(*op);
}
EXPORT void fpgapipe_model_take(void* program, Step* steps, int64_t count) {
    static_cast<Program*>(program)->take(steps, count);
}
// Number of the first step that is left to Python; -1 if there is too little memory.
EXPORT int64_t fpgapipe_model_run(void* program, State* state, int64_t start, const int64_t* spans,
                                  int64_t num_spans, int64_t is_checked) {
    try {
        return static_cast<Program*>(program)->run(*state, start, spans, num_spans, is_checked);
    } catch (const std::bad_alloc&) {
        return -1;
    }
}
EXPORT void fpgapipe_model_threads(int64_t number, int64_t pays_ns) {
    Threads::all().set(int(number), pays_ns);
}
#ifdef FPGAPIPE_FAULTS
EXPORT void fpgapipe_model_fault(int64_t number) { fault = int(number); }
#endif
