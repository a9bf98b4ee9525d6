// Runs the bench of two SoCs; the bytes of each serial port go over a socket. Only tests use it.
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
    Serial serial[2];
    int ports[2] = {serial[0].open(), serial[1].open()};
    std::printf("%d %d\n", ports[0], ports[1]);
    std::fflush(stdout);
    // Half periods in ps: two boards, whose clocks differ by 0.02 %.
    const unsigned long half[2] = {10000, 10002};
    unsigned long next[2] = {half[0], half[1]};
    bench.clock = 0;
    bench.reset = 3;
    for (unsigned long edge = 0; !context.gotFinish(); ++edge) {
        if (edge == 200) bench.reset = 0;
        int number = next[0] <= next[1] ? 0 : 1;
        next[number] += half[number];
        bool rises = !(bench.clock >> number & 1);
        Serial& here = serial[number];
        bool taken = false;
        if (rises) {
            taken = bench.to_valid >> number & bench.to_ready >> number & 1;
            if (bench.from_valid >> number & 1)
                here.from.push_back(number ? bench.from_data1 : bench.from_data0);
        }
        bench.clock ^= 1 << number;
        bench.eval();
        if (rises) {
            if (taken) here.to.pop_front();
            bool valid = !here.to.empty();
            bench.to_valid = (bench.to_valid & ~(1 << number)) | valid << number;
            if (valid) (number ? bench.to_data1 : bench.to_data0) = here.to.front();
            bench.eval();
            if (edge % 64 < 2) here.poll();
        }
    }
    bench.final();
}
