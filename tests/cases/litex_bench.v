// SoCs of LiteX, each with a chip of SDRAM; LINKED joins the links over pins of two of them. Only
// tests and benchmarks use it. BOARDS is how many there are.
`default_nettype none

// An SDRAM of 16 bits by 4 banks of 8192 rows of 512 words. It stops the simulation at commands that
// a chip would not take: accesses of closed banks, refreshes of open ones, or any of them before the
// mode is set to bursts of one word and a CAS latency of 2. Times in nanoseconds are not checked.
module sdram_chip (
    input wire clock, cke, cs_n, ras_n, cas_n, we_n,
    input wire [12:0] a,
    input wire [1:0] ba, dm,
    inout wire [15:0] dq
);
    reg [15:0] words [0:(1 << 24) - 1];
    reg [12:0] row [0:3];
    reg [3:0] open = 0;
    reg has_mode = 0;
    reg [3:0] refreshes = 0;
    reg [15:0] first, second;
    reg first_valid = 0, second_valid = 0;
    wire [23:0] place = {row[ba], ba, a[8:0]};
    assign dq = second_valid ? second : 16'bz;

    always @(posedge clock) begin
        first_valid <= 0;
        second_valid <= first_valid;
        second <= first;
        if (cke && !cs_n) begin
            case ({ras_n, cas_n, we_n})
                3'b000: begin
                    if (a[2:0] != 0 || a[6:4] != 2 || open != 0) $fatal(1, "mode %h", a);
                    has_mode <= refreshes >= 2;
                end
                3'b001: begin
                    if (open != 0) $fatal(1, "refresh of open banks");
                    if (refreshes != 15) refreshes <= refreshes + 1;
                end
                3'b010: if (a[10]) open <= 0; else open[ba] <= 0;
                3'b011: begin
                    if (open[ba] || !has_mode) $fatal(1, "bank %d cannot be opened", ba);
                    open[ba] <= 1;
                    row[ba] <= a;
                end
                3'b100: begin
                    if (!open[ba]) $fatal(1, "write to closed bank %d", ba);
                    if (!dm[0]) words[place][7:0] <= dq[7:0];
                    if (!dm[1]) words[place][15:8] <= dq[15:8];
                    if (a[10]) open[ba] <= 0;
                end
                3'b101: begin
                    if (!open[ba]) $fatal(1, "read of closed bank %d", ba);
                    first <= words[place];
                    first_valid <= 1;
                    if (a[10]) open[ba] <= 0;
                end
                default: ;
            endcase
        end
    end
endmodule

module board (
    input wire clock, reset,
    input wire [7:0] to_data,
    input wire to_valid,
    output wire to_ready,
    output wire [7:0] from_data,
    output wire from_valid,
    output wire out_clock, out_valid, out_last,
    output wire [7:0] out_data,
    input wire in_clock, in_valid, in_last,
    input wire [7:0] in_data
);
    wire chip_clock, cke, cs_n, ras_n, cas_n, we_n;
    wire [12:0] a;
    wire [1:0] ba, dm;
    wire [15:0] dq;
    sdram_chip chip (chip_clock, cke, cs_n, ras_n, cas_n, we_n, a, ba, dm, dq);
    fpgapipe soc (
        .clock(clock), .reset(reset),
        .serial_sink_data(to_data), .serial_sink_valid(to_valid), .serial_sink_ready(to_ready),
        .serial_source_data(from_data), .serial_source_valid(from_valid),
        .serial_source_ready(1'b1),
        .sdram_clock(chip_clock), .sdram_cke(cke), .sdram_cs_n(cs_n), .sdram_ras_n(ras_n),
        .sdram_cas_n(cas_n), .sdram_we_n(we_n), .sdram_a(a), .sdram_ba(ba), .sdram_dm(dm),
        .sdram_dq(dq),
`ifdef LINKED
        .link0_out_clock(out_clock), .link0_out_valid(out_valid), .link0_out_last(out_last),
        .link0_out_data(out_data),
        .link0_in_clock(in_clock), .link0_in_valid(in_valid), .link0_in_last(in_last),
        .link0_in_data(in_data),
`endif
        .wifi_gpio0(), .sim_trace(1'b0)
    );
endmodule

module bench (
    input wire [`BOARDS - 1:0] clock, reset,
    input wire [8 * `BOARDS - 1:0] to_data,
    input wire [`BOARDS - 1:0] to_valid,
    output wire [`BOARDS - 1:0] to_ready,
    output wire [8 * `BOARDS - 1:0] from_data,
    output wire [`BOARDS - 1:0] from_valid
);
    wire [`BOARDS - 1:0] c, v, l;
    wire [8 * `BOARDS - 1:0] d;
    genvar n;
    generate
        for (n = 0; n < `BOARDS; n = n + 1) begin : boards
            localparam other = `BOARDS - 1 - n;
            board here (
                clock[n], reset[n], to_data[8 * n +: 8], to_valid[n], to_ready[n],
                from_data[8 * n +: 8], from_valid[n], c[n], v[n], l[n], d[8 * n +: 8],
                c[other], v[other], l[other], d[8 * other +: 8]
            );
        end
    endgenerate
endmodule
