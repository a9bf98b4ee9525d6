// The state of a Verilated design as bytes, by the functions that --savable generates.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "verilated.h"
#include "verilated_save.h"

namespace fpgapipe {

class ModelWriter final : public VerilatedSerialize {
  public:
    explicit ModelWriter(std::vector<uint8_t>& out) : out_(out) { m_isOpen = true; }
    void flush() override {
        out_.insert(out_.end(), m_bufp, m_cp);
        m_cp = m_bufp;
    }

  private:
    std::vector<uint8_t>& out_;
};

class ModelReader final : public VerilatedDeserialize {
  public:
    explicit ModelReader(const std::vector<uint8_t>& in) : next_(in.data()), left_(in.size()) {
        m_isOpen = true;
        m_endp = m_bufp;
    }
    bool at_end() const { return !left_ && m_cp == m_endp; }

  protected:
    // Move what is left to the begin of the buffer, and fill it.
    void fill() override {
        const size_t kept = m_endp - m_cp;
        std::memmove(m_bufp, m_cp, kept);
        m_cp = m_bufp;
        const size_t size = std::min(left_, bufferSize() - kept);
        std::memcpy(m_bufp + kept, next_, size);
        m_endp = m_bufp + kept + size;
        next_ += size;
        left_ -= size;
    }

  private:
    const uint8_t* next_;
    size_t left_;
};

template <class V>
std::vector<uint8_t> model_state(V& top) {
    std::vector<uint8_t> bytes;
    ModelWriter writer(bytes);
    writer << top;
    writer.flush();
    return bytes;
}

template <class V>
void set_model_state(V& top, const std::vector<uint8_t>& bytes) {
    ModelReader reader(bytes);
    reader >> top;
    if (!reader.at_end()) throw std::runtime_error("the state is of another design");
}

// Replace in the bytes of a design the address that a block had by the one that it has in the
// design whose own bytes are `fresh`. The address is wherever the new one is in those.
inline void move_handle(std::vector<uint8_t>& bytes, const std::vector<uint8_t>& fresh,
                        uintptr_t before, uintptr_t now) {
    const auto* pattern = reinterpret_cast<const uint8_t*>(&now);
    auto place = fresh.begin();
    size_t found = 0;
    while ((place = std::search(place, fresh.end(), pattern, pattern + sizeof now)) != fresh.end()) {
        uint8_t* at = bytes.data() + (place - fresh.begin());
        if (std::memcmp(at, &before, sizeof before) != 0)
            throw std::runtime_error("the state is of another design");
        std::memcpy(at, &now, sizeof now);
        ++found;
        ++place;
    }
    if (!found) throw std::runtime_error("the design has lost the address of a block");
}

}  // namespace fpgapipe
