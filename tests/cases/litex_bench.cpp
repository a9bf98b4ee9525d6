// Runs SoCs, each with a clock of its own; the bytes of each serial port go over a socket. Only
// tests and benchmarks use it. BOARDS is how many there are.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <string>

#include "Vtop.h"
#include "verilated.h"

struct Serial {
    int listener, line = -1;
    std::deque<unsigned char> to;
    std::string from;

    int open() {
        listener = socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address);
        listen(listener, 1);
        fcntl(listener, F_SETFL, O_NONBLOCK);
        socklen_t size = sizeof address;
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
        return ntohs(address.sin_port);
    }

    void poll() {
        int one = 1;
        if (line < 0) {
            line = accept(listener, nullptr, nullptr);
            if (line < 0) return;
            fcntl(line, F_SETFL, O_NONBLOCK);
            setsockopt(line, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        }
        // Acknowledged at once: the server sends a request in two parts, one after the other.
        setsockopt(line, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof one);
        unsigned char some[4096];
        if (to.size() < sizeof some) {
            ssize_t count = recv(line, some, sizeof some, 0);
            if (count > 0) to.insert(to.end(), some, some + count);
        }
        if (!from.empty()) {
            ssize_t count = send(line, from.data(), from.size(), MSG_NOSIGNAL);
            if (count > 0) from.erase(0, count);
        }
    }
};

int main(int argc, char** argv) {
    VerilatedContext context;
    context.commandArgs(argc, argv);
    Vtop bench{&context};
    Serial serial[BOARDS];
    for (Serial& each : serial) std::printf("%d ", each.open());
    std::printf("\n");
    std::fflush(stdout);
    // Half periods in ps: boards whose clocks differ by 0.02 %.
    unsigned long half[BOARDS], next[BOARDS];
    for (int board = 0; board < BOARDS; ++board) next[board] = half[board] = 10000 + 2 * board;
    bench.clock = 0;
    bench.reset = (1 << BOARDS) - 1;
    for (unsigned long edge = 0; !context.gotFinish(); ++edge) {
        if (edge == 100 * BOARDS) bench.reset = 0;
        int number = 0;
        for (int board = 1; board < BOARDS; ++board)
            if (next[board] < next[number]) number = board;
        next[number] += half[number];
        bool rises = !(bench.clock >> number & 1);
        Serial& here = serial[number];
        bool taken = false;
        if (rises) {
            taken = bench.to_valid >> number & bench.to_ready >> number & 1;
            if (bench.from_valid >> number & 1)
                here.from.push_back(bench.from_data >> 8 * number & 0xff);
        }
        bench.clock ^= 1 << number;
        bench.eval();
        if (rises) {
            if (taken) here.to.pop_front();
            bool valid = !here.to.empty();
            // These are evaluated with the next edge, which is not one at which this SoC looks.
            bench.to_valid = (bench.to_valid & ~(1 << number)) | valid << number;
            if (valid)
                bench.to_data =
                    (bench.to_data & ~(0xff << 8 * number)) | here.to.front() << 8 * number;
            if (edge % (32 * BOARDS) < BOARDS) here.poll();
        }
    }
    bench.final();
}
