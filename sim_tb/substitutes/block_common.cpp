// Reports a difference between a block in Verilog and its substitute, in a design that has both.

#include <stdexcept>
#include <string>

extern "C" void fpgapipe_differs(const char* block, const char* signal) {
    throw std::runtime_error(std::string("the substitute of ") + block +
                             " differs from its Verilog in signal " + signal);
}
