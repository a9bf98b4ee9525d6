"""A stand-in for AMD's Aurora IP, and a design in which two packaged modules are joined by it.

It sends one beat after the other over its first lane: a start bit, the bit of the last beat, then
the data. The pins of its reference clock are taken for the user clock.
"""


def stand_in(name, lanes):
    """Verilog of the stand-in, with the ports of PG074 that a packaged module connects."""
    bits, wide = 64 * lanes, 64 * lanes + 1
    return f"""
module {name} (
    input  wire [{lanes - 1}:0] rxp, rxn, output wire [{lanes - 1}:0] txp, txn,
    input  wire gt_refclk1_p, gt_refclk1_n, init_clk, reset_pb, pma_init, power_down,
    input  wire [2:0] loopback, input wire gt_rxcdrovrden_in,
    output wire user_clk_out, output reg channel_up,
    input  wire [{bits - 1}:0] s_axi_tx_tdata, input wire [{8 * lanes - 1}:0] s_axi_tx_tkeep,
    input  wire s_axi_tx_tlast, s_axi_tx_tvalid, output wire s_axi_tx_tready,
    output wire [{bits - 1}:0] m_axi_rx_tdata,
    output wire m_axi_rx_tlast, output reg m_axi_rx_tvalid
);
    assign user_clk_out = gt_refclk1_p;
    reg [{wide}:0] out, taken;
    reg [15:0] left, due;
    assign s_axi_tx_tready = channel_up && left == 0;
    assign txp = {{{lanes}{{out[0]}}}};
    assign txn = ~txp;
    assign m_axi_rx_tlast = taken[0];
    assign m_axi_rx_tdata = taken[{wide - 1}:1];
    wire unused = &{{1'b0, rxp, rxn, gt_refclk1_n, init_clk, pma_init, power_down, loopback,
        gt_rxcdrovrden_in, s_axi_tx_tkeep, taken[{wide}]}};
    initial begin
        out = 0; taken = 0; left = 0; due = 0; channel_up = 0; m_axi_rx_tvalid = 0;
    end
    always @(posedge user_clk_out) begin
        channel_up <= ~reset_pb;
        out <= {{1'b0, out[{wide}:1]}};
        if (left != 0) left <= left - 1;
        if (s_axi_tx_tvalid && s_axi_tx_tready) begin
            out <= {{s_axi_tx_tdata, s_axi_tx_tlast, 1'b1}};
            left <= {wide};
        end
        m_axi_rx_tvalid <= due == 1;
        if (due != 0) begin
            due <= due - 1;
            taken <= {{1'b0, rxp[0], taken[{wide - 1}:1]}};
        end else if (rxp[0] && channel_up) due <= {wide};
    end
endmodule
"""


def pair(module, spec):
    """Verilog of a design of two modules whose lanes are crossed."""
    ports, ends = [], []
    for end, other in (("a", "b"), ("b", "a")):
        connections = []
        beat = {"tdata": 8 * spec.phy_bytes, "tkeep": spec.phy_bytes, "tlast": 1}
        for bus, way, back, signals in (
            ("tx", "input ", "output", beat),
            ("rx", "output", "input ", beat),
            ("clock", "output", "input ", {"tdata": 8}),
        ):
            for signal, bits in {**signals, "tvalid": 1, "tready": 1}.items():
                direction = back if signal == "tready" else way
                name = f"{bus}_axis_{signal}"
                ports.append(f"    {direction} wire [{bits - 1}:0] {end}_{name}")
                connections.append(f".{name}({end}_{name})")
        ends.append(
            f"    wire [{spec.lanes - 1}:0] {end}_p, {end}_n;\n"
            f"    {module} {end} (.ap_clk(clk), .ap_rst_n(~rst), .init_clk(init_clk),\n"
            f"        .gt_refclk_p(user_clk), .gt_refclk_n(~user_clk), .gt_rxp_in({other}_p),\n"
            f"        .gt_rxn_in({other}_n), .gt_txp_out({end}_p), .gt_txn_out({end}_n),\n"
            f"        {', '.join(connections)});"
        )
    listed = ",\n".join(["    input  wire clk, rst, user_clk, init_clk", *ports])
    body = "\n".join(ends)
    return f"module top (\n{listed}\n);\n{body}\nendmodule\n"
