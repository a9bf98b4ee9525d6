// The operand reader in C++: gemm/operand.py's OperandReader, for ports of whole words.
//
// In each cycle, the stages move from the last to the first one, so each finds what the stage
// before it showed in the last cycle. A block is quantised when it leaves the transposer, and its
// vector waits in a ring; the same block is not quantised again. A column of a square is gathered
// when it is read, and waits in a ring, too. Squares and FIFOs keep what they hold where it is.

#include <cstdint>
#include <cstring>

#include "block_addresses.hpp"
#include "block_bits.hpp"
#include "block_quantise.hpp"
#include "block_simd.hpp"

namespace {

constexpr unsigned lanes = 32, depth = 16, word_halves = 32;
constexpr unsigned slots = 2 * depth;  // more than a FIFO and the registers behind it hold

// Inputs and outputs of one bit.
enum Input { rst = 1, i_valid = 2, halt = 4, read_ready = 8, data_valid = 16, o_ready = 32 };
enum Output { i_ready = 1, read_valid = 2, o_valid = 4, error_valid = 8, o_last = 16, moved = 32 };
constexpr unsigned turn_bit = 8;  // first bit of the turn of a read among the outputs

// What moves in a cycle between the stages: 32 elements, and what comes with them.
struct Word {
    alignas(64) uint16_t values[lanes];
    uint32_t more;
    uint8_t side;
    bool last;
};

struct Vector {
    uint8_t elements[lanes];
    uint8_t code;
    bool last;
};

// Places of a queue::WordFifo, whose output is the entry that was read last.
struct Fifo {
    uint32_t written, read;
    bool valid;

    uint32_t level() const { return written - read; }
    bool ready() const { return level() != depth; }
    unsigned front() const { return (read - 1) % slots; }
    unsigned back() const { return written % slots; }
    // Move by one cycle; whether a word enters and whether the output is taken.
    void tick(bool enters, bool taken) {
        const bool reads = level() != 0 && (!valid || taken);
        valid = reads || (valid && !taken);
        read += reads;
        written += enters;
    }
    void reset() {
        written = read = 0;
        valid = false;
    }
};

struct Square {
    alignas(64) uint16_t values[lanes][lanes];
    uint32_t more[lanes];
    uint8_t emit, side;
    bool last;
};

struct State {
    fpgapipe::Addresses addresses;
    alignas(64) uint16_t words[slots][word_halves];
    fpgapipe::Request tags[slots];
    Fifo words_fifo, tags_fifo;

    // Requests. Each tag has the pairs of elements by which its word comes rotated.
    uint32_t read_address, error_index;
    uint8_t tag_pairs[slots], read_turn, next_row;
    uint8_t places;
    bool read_valid, error_valid, second_part;

    // Halves of words of FP32.
    uint32_t low;  // place of the first half
    bool has_low;

    // The transposer.
    Square squares[2];
    bool full[2], fill, drain, settling, has_out;
    uint8_t row, column, reading;
    Word columns[2], out;
    uint8_t columns_place;

    // Vectors.
    bool has_fresh;  // `out` has changed since it was quantised
    uint32_t run;    // number of places of the ring that have the vector of `out`, from the last on
    uint32_t vectors_place, vectors_valid;
    Vector vectors[fpgapipe::quantise_ticks + 1], fresh, skid;
    bool has_skid;
};

class Reader final : public fpgapipe::Substitute {
  public:
    Reader(unsigned rows, unsigned address_bits)
        : rows_(rows),
          stages_(fpgapipe::quantise_ticks + (rows < lanes)),
          address_bits_(address_bits),
          state_() {
        state_.places = depth;
    }

    void descriptor(const uint32_t* words) {
        std::memcpy(descriptor_, words, sizeof descriptor_);
    }
    void word(const uint32_t* data) {
        std::memcpy(state_.words[state_.words_fifo.back()], data, sizeof state_.words[0]);
    }

    uint32_t step(uint32_t inputs, uint32_t& address, uint32_t& index) {
        State& s = state_;
        const bool advance = !s.has_skid;
        const bool has_moved = leave(inputs & o_ready);
        bool taken = false, takes_word = false;
        transpose(advance, taken, takes_word);
        request(inputs, taken, takes_word);
        if (inputs & rst) reset();
        address = s.read_address;
        index = s.error_index;
        return (s.addresses.ready() ? i_ready : 0) | (s.read_valid ? read_valid : 0) |
               (s.has_skid || s.vectors_valid >> (stages_ - 1) & 1 ? o_valid : 0) |
               (s.error_valid ? error_valid : 0) | (shown().last ? o_last : 0) |
               uint32_t(s.read_turn) << turn_bit |
               (has_moved || inputs & rst ? moved : 0);
    }

    void vector(uint8_t* bytes) const {
        const Vector& now = shown();
        std::memcpy(bytes, now.elements, rows_);
        bytes[rows_] = now.code;
        if (is_faulty_ && now.elements[0] % 128 == 1) bytes[0] ^= 1;
    }

    void archive(fpgapipe::Archive& archive) override { archive(state_); }

  private:
    const Vector& shown() const {
        return state_.has_skid ? state_.skid : state_.vectors[state_.vectors_place];
    }

    // Quantise the block that leaves the transposer, and move the vectors; returns whether the
    // vector that is shown may have changed.
    bool leave(bool ready) {
        State& s = state_;
        if (s.has_skid) {
            s.has_skid = !ready;
            return ready;
        }
        const unsigned newest = 1u << (stages_ - 1);
        if (s.vectors_valid & newest && !ready) {
            s.skid = s.vectors[s.vectors_place];
            s.has_skid = true;
        }
        s.vectors_valid = (s.vectors_valid << 1 | s.has_out) & (2 * newest - 1);
        if (s.has_fresh) {
            fpgapipe::QuantisedBlock block;
            quantise_(s.out.values, s.out.more, block);
            const unsigned part = s.out.side % (lanes / rows_);
            std::memcpy(s.fresh.elements, block.elements + part * rows_, rows_);
            s.fresh.code = uint8_t(block.code);
            s.fresh.last = s.out.last;
            s.has_fresh = false;
            s.run = 0;
        }
        const bool changes = s.run < stages_;
        if (changes) {
            s.vectors[s.vectors_place] = s.fresh;
            ++s.run;
        }
        s.vectors_place = s.vectors_place + 1 == stages_ ? 0 : s.vectors_place + 1;
        return changes;
    }

    // Move the transposer, and take a word of its input: of a tag, and of the words if it has any.
    void transpose(bool out_ready, bool& taken, bool& takes_word) {
        State& s = state_;
        const fpgapipe::Request& tag = s.tags[s.tags_fifo.front()];
        const bool has_word = s.words_fifo.valid;
        const bool takes_low =
            s.tags_fifo.valid && !tag.empty && tag.fp32 && !s.has_low && has_word;
        const bool valid =
            s.tags_fifo.valid && (tag.empty || (has_word && (s.has_low || !tag.fp32)));

        const bool move = out_ready || !s.has_out;
        const bool any_full = s.full[0] || s.full[1];
        const bool reads = move && s.full[s.drain] && !s.settling;
        Square& drained = s.squares[s.drain];
        const bool is_last_column = int(s.column) == int(drained.emit) - 1;
        const bool frees = reads && is_last_column;
        const bool ready = tag.transposed ? !s.full[s.fill] || (frees && s.fill == s.drain)
                                          : move && !any_full && !s.reading;
        taken = valid && ready;
        takes_word = takes_low || (taken && !tag.empty);
        const bool stores = taken && tag.transposed;
        const bool passes = taken && !tag.transposed;

        if (move) {
            const bool leaves = s.reading & 2;
            if (leaves) {
                s.out = s.columns[s.columns_place];
                s.has_fresh = true;
            } else if (passes) {
                assemble(tag, s.out.values, s.out.more);
                s.out.side = tag.sub;
                s.out.last = tag.last;
                s.has_fresh = true;
            }
            s.has_out = leaves || passes;
            if (reads) gather(drained, s.column, is_last_column, s.columns[s.columns_place]);
            s.reading = uint8_t((s.reading << 1 | reads) & 3);
            s.columns_place ^= 1;
        }
        s.settling = stores && s.row == lanes - 1 && (!any_full || frees);
        if (frees) {
            s.full[s.drain] = false;
            s.drain = !s.drain;
            s.column = 0;
        } else if (reads) {
            s.column = (s.column + 1) % lanes;
        }
        if (stores) {
            Square& square = s.squares[s.fill];
            assemble(tag, square.values[s.row], square.more[s.row]);
            if (s.row == lanes - 1) {
                s.full[s.fill] = true;
                s.fill = !s.fill;
                square.emit = tag.emit;
                square.side = tag.sub;
                square.last = tag.last;
            }
            s.row = (s.row + 1) % lanes;
        }
        if (takes_low) {
            s.low = s.words_fifo.front();
            s.has_low = true;
        } else if (taken) {
            s.has_low = false;
        }
    }

    static void gather(const Square& square, unsigned column, bool is_last_column, Word& to) {
        uint32_t more = 0;
        for (unsigned row = 0; row < lanes; ++row) {
            to.values[row] = square.values[row][column];
            more |= (square.more[row] >> column & 1) << row;
        }
        to.more = more;
        to.side = square.side;
        to.last = square.last && is_last_column;
    }

    // Make the elements of a tag and of the words that were read for it. Of a word of four-byte
    // elements, both parts come rotated by as many elements.
    void assemble(const fpgapipe::Request& tag, uint16_t* values, uint32_t& more) const {
        const State& s = state_;
        more = 0;
        if (!tag.mask) {
            std::memset(values, 0, lanes * sizeof *values);
            return;
        }
        const uint16_t* from = s.words[s.words_fifo.front()];
        const unsigned turn = 2 * s.tag_pairs[s.tags_fifo.front()];
        if (tag.fp32) {
            for (unsigned half = 0; half < 2; ++half) {
                const uint16_t* here = half ? from : s.words[s.low];
                for (unsigned i = 0; i < lanes / 2; ++i) {
                    const unsigned at = (i + turn) % (lanes / 2);
                    values[lanes / 2 * half + i] = here[2 * at + 1];
                    more |= uint32_t(here[2 * at] != 0) << (lanes / 2 * half + i);
                }
            }
            more &= tag.mask;
            from = values;
        } else if (turn) {
            std::memcpy(values, from + turn, (lanes - turn) * sizeof *values);
            std::memcpy(values + (lanes - turn), from, turn * sizeof *values);
            from = values;
        }
        if (tag.mask != UINT32_MAX) {
            for (unsigned i = 0; i < lanes; ++i) values[i] = tag.mask >> i & 1 ? from[i] : 0;
        } else if (from != values) {
            std::memcpy(values, from, lanes * sizeof *values);
        }
    }

    // Request the words of the tags, and move addresses and FIFOs.
    void request(uint32_t inputs, bool taken, bool takes_word) {
        State& s = state_;
        const fpgapipe::Request& next = s.addresses.request();
        const bool tags_ready = s.tags_fifo.ready();
        const bool reads = !next.empty && !next.out_of_range;
        const bool is_final = !reads || s.second_part == next.fp32;
        const bool may = !(inputs & halt) && tags_ready &&
                         (!reads || (s.places && (inputs & read_ready || !s.read_valid)));
        const bool goes = s.addresses.valid() && may;
        const bool issues = goes && reads;
        const bool enters = goes && !s.second_part;
        const uint8_t pairs = next.transposed ? s.next_row / 2 : 0;
        s.error_valid = goes && next.out_of_range;
        if (issues) {
            s.read_address =
                (next.address + (s.second_part ? 2 * word_halves : 0)) & ~(~0u << address_bits_);
            s.read_turn = uint8_t((next.fp32 ? 4 : 2) * pairs % word_halves);
            s.read_valid = true;
        } else if (inputs & read_ready) {
            s.read_valid = false;
        }
        if (enters) {
            fpgapipe::Request& tag = s.tags[s.tags_fifo.back()];
            tag = next;
            tag.empty = !reads;
            if (!reads) tag.mask = 0;
            s.tag_pairs[s.tags_fifo.back()] = pairs;
        }
        if (goes) {
            s.error_index = next.index;
            s.second_part = !is_final && !s.second_part;
            if (is_final && next.transposed) s.next_row = (s.next_row + 1) % lanes;
        }
        s.places = uint8_t(s.places - issues + takes_word) % (2 * depth);
        s.tags_fifo.tick(enters, taken);
        s.words_fifo.tick(inputs & data_valid && s.words_fifo.ready(), takes_word);
        const bool takes = inputs & i_valid && s.addresses.ready();
        s.addresses.tick(takes ? descriptor_ : nullptr, may && is_final, address_bits_, forgets_);
    }

    // Drop all that is under way; data stays, of which the gateware may show some.
    void reset() {
        State& s = state_;
        s.addresses.reset();
        s.words_fifo.reset();
        s.tags_fifo.reset();
        s.places = depth;
        s.read_valid = s.error_valid = s.second_part = s.has_low = false;
        s.full[0] = s.full[1] = s.fill = s.drain = s.settling = s.has_out = false;
        s.row = s.column = s.reading = s.next_row = 0;
        s.vectors_valid = 0;
        s.has_skid = false;
    }

    const unsigned rows_, stages_, address_bits_;
    const fpgapipe::QuantiseKernel quantise_ = fpgapipe::quantise_kernel();
    const bool is_faulty_ = fpgapipe::faulty("reader");
    const bool forgets_ = fpgapipe::faulty("reader that forgets a checkpoint");
    uint32_t descriptor_[32];  // of the instruction that enters in this cycle
    State state_;
};

}  // namespace

extern "C" void* fpgapipe_reader_create(int rows, int address_bits) {
    return new Reader(rows, address_bits);
}
extern "C" void fpgapipe_reader_destroy(void* self) { delete static_cast<Reader*>(self); }
extern "C" void fpgapipe_reader_descriptor(void* self, const uint32_t* descriptor) {
    static_cast<Reader*>(self)->descriptor(descriptor);
}
extern "C" void fpgapipe_reader_word(void* self, const uint32_t* data) {
    static_cast<Reader*>(self)->word(data);
}
extern "C" int fpgapipe_reader_step(void* self, int inputs, int* address, int* index) {
    uint32_t to_read, of_error;
    const uint32_t outputs = static_cast<Reader*>(self)->step(inputs, to_read, of_error);
    *address = int(to_read);
    *index = int(of_error);
    return int(outputs);
}
extern "C" void fpgapipe_reader_vector(void* self, uint32_t* vector) {
    static_cast<Reader*>(self)->vector(reinterpret_cast<uint8_t*>(vector));
}
