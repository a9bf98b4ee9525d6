// Model of the one mode of AMD's DSP48E2 that packed cells use; see gemm/packed.py.
//
// P = AD * B + PCIN or P = AD * B + RND, with AD = D + A, where A, D, AD, B, the product and P are
// registers. Synthesis uses the part's own primitive, and vendors' simulators have their own model.
module DSP48E2 #(
  parameter AMULTSEL = "A", parameter BMULTSEL = "B", parameter PREADDINSEL = "A",
  parameter USE_MULT = "MULTIPLY", parameter USE_SIMD = "ONE48", parameter [47:0] RND = 48'd0,
  parameter ACASCREG = 1, parameter ADREG = 1, parameter AREG = 1, parameter BCASCREG = 1,
  parameter BREG = 1, parameter DREG = 1, parameter MREG = 1, parameter PREG = 1,
  parameter ALUMODEREG = 1, parameter CARRYINREG = 1, parameter CARRYINSELREG = 1,
  parameter CREG = 1, parameter INMODEREG = 1, parameter OPMODEREG = 1
) (
  output [47:0] P, output [47:0] PCOUT,
  input CLK, input [29:0] A, input [29:0] ACIN, input [3:0] ALUMODE, input [17:0] B,
  input [17:0] BCIN, input [47:0] C, input CARRYCASCIN, input CARRYIN, input [2:0] CARRYINSEL,
  input CEA1, input CEA2, input CEAD, input CEALUMODE, input CEB1, input CEB2, input CEC,
  input CECARRYIN, input CECTRL, input CED, input CEINMODE, input CEM, input CEP, input [26:0] D,
  input [4:0] INMODE, input MULTSIGNIN, input [8:0] OPMODE, input [47:0] PCIN, input RSTA,
  input RSTALLCARRYIN, input RSTALUMODE, input RSTB, input RSTC, input RSTCTRL, input RSTD,
  input RSTINMODE, input RSTM, input RSTP
`ifdef FORMAL
  , output [26:0] FORMAL_A2, output [26:0] FORMAL_D, output [26:0] FORMAL_AD,
  output [17:0] FORMAL_B2, output [63:0] FORMAL_M
`endif
);
  localparam MODE = AMULTSEL == "AD" && BMULTSEL == "B" && PREADDINSEL == "A" &&
    USE_MULT == "MULTIPLY" && USE_SIMD == "ONE48" && ACASCREG == 1 && ADREG == 1 && AREG == 1 &&
    BCASCREG == 1 && BREG == 1 && DREG == 1 && MREG == 1 && PREG == 1 && ALUMODEREG == 0 &&
    CARRYINREG == 0 && CARRYINSELREG == 0 && CREG == 0 && INMODEREG == 0 && OPMODEREG == 0;

  reg signed [26:0] a2 = 0, d = 0, ad = 0;
  reg signed [17:0] b2 = 0;
  // The product has 45 bits and P has 48. A simulator need not cut them off words of 64.
  reg signed [63:0] m = 0;
  reg signed [63:0] p = 0;
  assign P = p;
  assign PCOUT = p;

  always @(posedge CLK) begin
    if (CEA2) a2 <= A[26:0];
    if (CED) d <= D;
    if (CEAD) ad <= d + a2;
    if (CEB2) b2 <= B;
    if (CEM) m <= ad * b2;
    if (CEP) p <= (OPMODE[8] ? {16'd0, RND} : 64'd0) + (OPMODE[4] ? {16'd0, PCIN} : 64'd0) + m;
  end
`ifdef FORMAL
  assign FORMAL_A2 = a2;
  assign FORMAL_D = d;
  assign FORMAL_AD = ad;
  assign FORMAL_B2 = b2;
  assign FORMAL_M = m;
`else
  initial if (!MODE) $fatal(1, "this mode of a DSP48E2 is not modelled");
  // The fields of a sum hold products of -127..127 only. Operands are looked at in their registers,
  // where a simulator has them at hand.
  wire bad = (a2 == -27'sd128) | (d == (-27'sd128 <<< 19)) | (b2 == -18'sd128);
  always @(posedge CLK) if (bad) $fatal(1, "-128 enters a packed cell");
`endif
endmodule
