// The state of a simulation as bytes: an `Archive` writes it, or reads it back.
//
// Each class names its members once, in a function `archive` that serves both directions. Bytes are
// those of this machine and of this library, so a state is restored only by the library that saved
// it, or by another copy of it (simulated_devices.py compares them).

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace fpgapipe {

class Archive {
  public:
    // Write to the end of `out`.
    explicit Archive(std::vector<uint8_t>& out) : out_(&out) {}
    // Read from `size` bytes.
    Archive(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}

    bool reads() const { return !out_; }
    bool at_end() const { return next_ == end_; }

    void raw(void* data, size_t size) {
        if (out_) {
            const auto* begin = static_cast<const uint8_t*>(data);
            out_->insert(out_->end(), begin, begin + size);
            return;
        }
        if (size > size_t(end_ - next_)) throw std::runtime_error("the state ends too early");
        std::memcpy(data, next_, size);
        next_ += size;
    }

    template <class... T>
    void operator()(T&... values) {
        (one(values), ...);
    }

  private:
    template <class T>
    void one(T& value) {
        static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
        raw(&value, sizeof value);
    }
    void one(std::string& text) { sequence(text); }
    template <class T>
    void one(std::vector<T>& items) {
        sequence(items);
    }
    template <class T>
    void one(std::deque<T>& items) {
        sequence(items);
    }
    template <class S>
    void sequence(S& items) {
        uint64_t size = items.size();
        one(size);
        if (reads()) {
            if (size > size_t(end_ - next_)) throw std::runtime_error("the state ends too early");
            items.resize(size);
        }
        for (auto& item : items) {
            if constexpr (requires { item.archive(*this); }) {
                item.archive(*this);
            } else {
                one(item);
            }
        }
    }

    std::vector<uint8_t>* out_ = nullptr;
    const uint8_t *next_ = nullptr, *end_ = nullptr;
};

// A block of a design that is simulated in C++. Those that a device makes are known to it, in the
// order in which they were made; the design calls them by their addresses.
class Substitute {
  public:
    Substitute() {
        if (made) made->push_back(this);
    }
    Substitute(const Substitute&) = delete;
    virtual ~Substitute() = default;
    virtual void archive(Archive& archive) = 0;

    static inline thread_local std::vector<Substitute*>* made = nullptr;
};

}  // namespace fpgapipe
