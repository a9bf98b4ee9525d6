# Builds the bitstream fpgapipe for vcu118-1. Made by fpgapipe; do not edit.

create_project -force project build -part xcvu9p-flga2104-2L-e
set_property board_part xilinx.com:vcu118:part0:2.4 [current_project]
add_files -norecurse [list ../../../hardware/core_2x2_DIGEST.v fpgapipe_core.v fpgapipe_irq_sync.v fpgapipe_aurora_0.v aurora_bridge_4x64.v fpgapipe_aurora_1.v]

add_files -fileset constrs_1 -norecurse fpgapipe_irq_sync.xdc
set_property SCOPED_TO_REF fpgapipe_irq_sync [get_files fpgapipe_irq_sync.xdc]

create_ip -name aurora_64b66b -vendor xilinx.com -library ip -module_name aurora_64b66b_0
set_property -dict [list \
    CONFIG.C_AURORA_LANES {4} \
    CONFIG.C_LINE_RATE {25.78125} \
    CONFIG.C_REFCLK_FREQUENCY {156.25} \
    CONFIG.C_INIT_CLK {100} \
    CONFIG.interface_mode {Framing} \
    CONFIG.flow_mode {None} \
    CONFIG.crc_mode {false} \
    CONFIG.drp_mode {Disabled} \
    CONFIG.C_USE_BYTESWAP {true} \
    CONFIG.SupportLevel {1} \
    CONFIG.CHANNEL_ENABLE {X1Y48 X1Y49 X1Y50 X1Y51} \
    CONFIG.C_START_QUAD {Quad_X1Y12} \
    CONFIG.C_START_LANE {X1Y48} \
    CONFIG.C_REFCLK_SOURCE {MGTREFCLK0_of_Quad_X1Y12} \
] [get_ips aurora_64b66b_0]
generate_target all [get_ips aurora_64b66b_0]
add_files -fileset constrs_1 -norecurse fpgapipe_aurora_0.xdc
set_property SCOPED_TO_REF fpgapipe_aurora_0 [get_files fpgapipe_aurora_0.xdc]
set_property PROCESSING_ORDER LATE [get_files fpgapipe_aurora_0.xdc]
create_ip -name aurora_64b66b -vendor xilinx.com -library ip -module_name aurora_64b66b_1
set_property -dict [list \
    CONFIG.C_AURORA_LANES {4} \
    CONFIG.C_LINE_RATE {25.78125} \
    CONFIG.C_REFCLK_FREQUENCY {156.25} \
    CONFIG.C_INIT_CLK {100} \
    CONFIG.interface_mode {Framing} \
    CONFIG.flow_mode {None} \
    CONFIG.crc_mode {false} \
    CONFIG.drp_mode {Disabled} \
    CONFIG.C_USE_BYTESWAP {true} \
    CONFIG.SupportLevel {1} \
    CONFIG.CHANNEL_ENABLE {X1Y52 X1Y53 X1Y54 X1Y55} \
    CONFIG.C_START_QUAD {Quad_X1Y13} \
    CONFIG.C_START_LANE {X1Y52} \
    CONFIG.C_REFCLK_SOURCE {MGTREFCLK0_of_Quad_X1Y13} \
] [get_ips aurora_64b66b_1]
generate_target all [get_ips aurora_64b66b_1]
add_files -fileset constrs_1 -norecurse fpgapipe_aurora_1.xdc
set_property SCOPED_TO_REF fpgapipe_aurora_1 [get_files fpgapipe_aurora_1.xdc]
set_property PROCESSING_ORDER LATE [get_files fpgapipe_aurora_1.xdc]
add_files -fileset constrs_1 -norecurse board.xdc

update_compile_order -fileset sources_1
create_bd_design system

# PCIe: memory by DMA, and the registers of the core behind the first BAR.
create_bd_intf_port -mode Master -vlnv xilinx.com:interface:pcie_7x_mgt_rtl:1.0 pci_express_x16
create_bd_intf_port -mode Slave -vlnv xilinx.com:interface:diff_clock_rtl:1.0 pcie_refclk
set_property -dict [list \
    CONFIG.FREQ_HZ {100000000} \
] [get_bd_intf_ports pcie_refclk]
create_bd_port -dir I -type rst pcie_perstn
set_property -dict [list \
    CONFIG.POLARITY {ACTIVE_LOW} \
] [get_bd_ports pcie_perstn]
create_bd_cell -type ip -vlnv xilinx.com:ip:util_ds_buf pcie_buffer
set_property -dict [list \
    CONFIG.C_BUF_TYPE {IBUFDSGTE} \
    CONFIG.DIFF_CLK_IN_BOARD_INTERFACE {pcie_refclk} \
    CONFIG.USE_BOARD_FLOW {true} \
] [get_bd_cells pcie_buffer]
create_bd_cell -type ip -vlnv xilinx.com:ip:xdma xdma
set_property -dict [list \
    CONFIG.PCIE_BOARD_INTERFACE {pci_express_x16} \
    CONFIG.SYS_RST_N_BOARD_INTERFACE {pcie_perstn} \
    CONFIG.xdma_axi_intf_mm {AXI_Memory_Mapped} \
    CONFIG.axilite_master_en {true} \
    CONFIG.axilite_master_size {1} \
    CONFIG.axilite_master_scale {Megabytes} \
    CONFIG.xdma_num_usr_irq {1} \
] [get_bd_cells xdma]
connect_bd_intf_net [get_bd_intf_ports pcie_refclk] [get_bd_intf_pins pcie_buffer/CLK_IN_D]
connect_bd_intf_net [get_bd_intf_pins xdma/pcie_mgt] [get_bd_intf_ports pci_express_x16]
connect_bd_net [get_bd_pins pcie_buffer/IBUF_DS_ODIV2] [get_bd_pins xdma/sys_clk]
connect_bd_net [get_bd_pins pcie_buffer/IBUF_OUT] [get_bd_pins xdma/sys_clk_gt]
connect_bd_net [get_bd_ports pcie_perstn] [get_bd_pins xdma/sys_rst_n]

# DDR4; its controller also makes the free-running clock.
create_bd_intf_port -mode Master -vlnv xilinx.com:interface:ddr4_rtl:1.0 ddr4_sdram_c1_083
create_bd_intf_port -mode Slave -vlnv xilinx.com:interface:diff_clock_rtl:1.0 default_250mhz_clk1
set_property -dict [list \
    CONFIG.FREQ_HZ {250000000} \
] [get_bd_intf_ports default_250mhz_clk1]
create_bd_port -dir I -type rst reset
set_property -dict [list \
    CONFIG.POLARITY {ACTIVE_HIGH} \
] [get_bd_ports reset]
create_bd_cell -type ip -vlnv xilinx.com:ip:ddr4 ddr4
set_property -dict [list \
    CONFIG.C0_CLOCK_BOARD_INTERFACE {default_250mhz_clk1} \
    CONFIG.C0_DDR4_BOARD_INTERFACE {ddr4_sdram_c1_083} \
    CONFIG.RESET_BOARD_INTERFACE {reset} \
    CONFIG.ADDN_UI_CLKOUT1_FREQ_HZ {100} \
] [get_bd_cells ddr4]
create_bd_cell -type ip -vlnv xilinx.com:ip:proc_sys_reset ddr4_reset
set_property -dict [list \
    CONFIG.C_EXT_RESET_HIGH {1} \
] [get_bd_cells ddr4_reset]
connect_bd_intf_net [get_bd_intf_ports default_250mhz_clk1] [get_bd_intf_pins ddr4/C0_SYS_CLK]
connect_bd_intf_net [get_bd_intf_pins ddr4/C0_DDR4] [get_bd_intf_ports ddr4_sdram_c1_083]
connect_bd_net [get_bd_ports reset] [get_bd_pins ddr4/sys_rst]
connect_bd_net [get_bd_pins ddr4/c0_ddr4_ui_clk] [get_bd_pins ddr4_reset/slowest_sync_clk]
connect_bd_net [get_bd_pins ddr4/c0_ddr4_ui_clk_sync_rst] [get_bd_pins ddr4_reset/ext_reset_in]
connect_bd_net [get_bd_pins ddr4_reset/peripheral_aresetn] [get_bd_pins ddr4/c0_ddr4_aresetn]

# The core with its clock and reset.
create_bd_cell -type ip -vlnv xilinx.com:ip:clk_wiz core_clock
set_property -dict [list \
    CONFIG.PRIM_SOURCE {No_buffer} \
    CONFIG.PRIM_IN_FREQ {100} \
    CONFIG.CLKOUT1_REQUESTED_OUT_FREQ {250} \
    CONFIG.USE_RESET {false} \
    CONFIG.USE_LOCKED {true} \
] [get_bd_cells core_clock]
create_bd_cell -type ip -vlnv xilinx.com:ip:proc_sys_reset core_reset
set_property -dict [list \
    CONFIG.C_EXT_RESET_HIGH {0} \
] [get_bd_cells core_reset]
create_bd_cell -type module -reference fpgapipe_core fpgapipe_core
create_bd_cell -type module -reference fpgapipe_irq_sync fpgapipe_irq_sync
connect_bd_net [get_bd_pins ddr4/addn_ui_clkout1] [get_bd_pins core_clock/clk_in1]
connect_bd_net [get_bd_pins core_clock/locked] [get_bd_pins core_reset/dcm_locked]

# Connections; SmartConnect converts clocks, widths and bursts.
create_bd_cell -type ip -vlnv xilinx.com:ip:smartconnect control
set_property -dict [list \
    CONFIG.NUM_SI {1} \
    CONFIG.NUM_MI {1} \
    CONFIG.NUM_CLKS {2} \
] [get_bd_cells control]
create_bd_cell -type ip -vlnv xilinx.com:ip:smartconnect memory
set_property -dict [list \
    CONFIG.NUM_SI {2} \
    CONFIG.NUM_MI {1} \
    CONFIG.NUM_CLKS {3} \
] [get_bd_cells memory]
connect_bd_net [get_bd_pins core_clock/clk_out1] [get_bd_pins core_reset/slowest_sync_clk] [get_bd_pins fpgapipe_core/ap_clk] [get_bd_pins control/aclk1] [get_bd_pins memory/aclk]
connect_bd_net [get_bd_pins xdma/axi_aclk] [get_bd_pins control/aclk] [get_bd_pins memory/aclk1] [get_bd_pins fpgapipe_irq_sync/clk]
connect_bd_net [get_bd_pins ddr4/c0_ddr4_ui_clk] [get_bd_pins memory/aclk2]
connect_bd_net [get_bd_pins xdma/axi_aresetn] [get_bd_pins core_reset/ext_reset_in] [get_bd_pins control/aresetn]
connect_bd_net [get_bd_pins core_reset/peripheral_aresetn] [get_bd_pins fpgapipe_core/ap_rst_n] [get_bd_pins memory/aresetn]
connect_bd_intf_net [get_bd_intf_pins xdma/M_AXI_LITE] [get_bd_intf_pins control/S00_AXI]
connect_bd_intf_net [get_bd_intf_pins control/M00_AXI] [get_bd_intf_pins fpgapipe_core/S_AXI_CONTROL]
connect_bd_intf_net [get_bd_intf_pins xdma/M_AXI] [get_bd_intf_pins memory/S00_AXI]
connect_bd_intf_net [get_bd_intf_pins fpgapipe_core/m_axi] [get_bd_intf_pins memory/S01_AXI]
connect_bd_intf_net [get_bd_intf_pins memory/M00_AXI] [get_bd_intf_pins ddr4/C0_DDR4_S_AXI]
connect_bd_net [get_bd_pins fpgapipe_core/interrupt] [get_bd_pins fpgapipe_irq_sync/i]
connect_bd_net [get_bd_pins fpgapipe_irq_sync/o] [get_bd_pins xdma/usr_irq_req]

# Link 0, port qsfp/0.
create_bd_cell -type module -reference fpgapipe_aurora_0 fpgapipe_aurora_0
create_bd_intf_port -mode Slave -vlnv xilinx.com:interface:diff_clock_rtl:1.0 qsfp0_refclk
set_property -dict [list \
    CONFIG.FREQ_HZ {156250000} \
] [get_bd_intf_ports qsfp0_refclk]
create_bd_intf_port -mode Master -vlnv xilinx.com:interface:gt_rtl:1.0 qsfp0
connect_bd_intf_net [get_bd_intf_ports qsfp0_refclk] [get_bd_intf_pins fpgapipe_aurora_0/gt_refclk]
connect_bd_intf_net [get_bd_intf_pins fpgapipe_aurora_0/gt_port] [get_bd_intf_ports qsfp0]
connect_bd_intf_net [get_bd_intf_pins fpgapipe_core/link0_tx] [get_bd_intf_pins fpgapipe_aurora_0/tx_axis]
connect_bd_intf_net [get_bd_intf_pins fpgapipe_aurora_0/rx_axis] [get_bd_intf_pins fpgapipe_core/link0_rx]
connect_bd_intf_net [get_bd_intf_pins fpgapipe_aurora_0/clock_axis] [get_bd_intf_pins fpgapipe_core/link0_clock]
connect_bd_net [get_bd_pins core_clock/clk_out1] [get_bd_pins fpgapipe_aurora_0/ap_clk]
connect_bd_net [get_bd_pins core_reset/peripheral_aresetn] [get_bd_pins fpgapipe_aurora_0/ap_rst_n]
connect_bd_net [get_bd_pins ddr4/addn_ui_clkout1] [get_bd_pins fpgapipe_aurora_0/init_clk]
create_bd_cell -type ip -vlnv xilinx.com:ip:xlconstant qsfp0_modsell
set_property -dict [list \
    CONFIG.CONST_WIDTH {1} \
    CONFIG.CONST_VAL {0} \
] [get_bd_cells qsfp0_modsell]
create_bd_port -dir O -type data qsfp0_modsell_pin
connect_bd_net [get_bd_pins qsfp0_modsell/dout] [get_bd_ports qsfp0_modsell_pin]
create_bd_cell -type ip -vlnv xilinx.com:ip:xlconstant qsfp0_resetl
set_property -dict [list \
    CONFIG.CONST_WIDTH {1} \
    CONFIG.CONST_VAL {1} \
] [get_bd_cells qsfp0_resetl]
create_bd_port -dir O -type data qsfp0_resetl_pin
connect_bd_net [get_bd_pins qsfp0_resetl/dout] [get_bd_ports qsfp0_resetl_pin]
create_bd_cell -type ip -vlnv xilinx.com:ip:xlconstant qsfp0_lpmode
set_property -dict [list \
    CONFIG.CONST_WIDTH {1} \
    CONFIG.CONST_VAL {0} \
] [get_bd_cells qsfp0_lpmode]
create_bd_port -dir O -type data qsfp0_lpmode_pin
connect_bd_net [get_bd_pins qsfp0_lpmode/dout] [get_bd_ports qsfp0_lpmode_pin]

# Link 1, port qsfp/1.
create_bd_cell -type module -reference fpgapipe_aurora_1 fpgapipe_aurora_1
create_bd_intf_port -mode Slave -vlnv xilinx.com:interface:diff_clock_rtl:1.0 qsfp1_refclk
set_property -dict [list \
    CONFIG.FREQ_HZ {156250000} \
] [get_bd_intf_ports qsfp1_refclk]
create_bd_intf_port -mode Master -vlnv xilinx.com:interface:gt_rtl:1.0 qsfp1
connect_bd_intf_net [get_bd_intf_ports qsfp1_refclk] [get_bd_intf_pins fpgapipe_aurora_1/gt_refclk]
connect_bd_intf_net [get_bd_intf_pins fpgapipe_aurora_1/gt_port] [get_bd_intf_ports qsfp1]
connect_bd_intf_net [get_bd_intf_pins fpgapipe_core/link1_tx] [get_bd_intf_pins fpgapipe_aurora_1/tx_axis]
connect_bd_intf_net [get_bd_intf_pins fpgapipe_aurora_1/rx_axis] [get_bd_intf_pins fpgapipe_core/link1_rx]
connect_bd_intf_net [get_bd_intf_pins fpgapipe_aurora_1/clock_axis] [get_bd_intf_pins fpgapipe_core/link1_clock]
connect_bd_net [get_bd_pins core_clock/clk_out1] [get_bd_pins fpgapipe_aurora_1/ap_clk]
connect_bd_net [get_bd_pins core_reset/peripheral_aresetn] [get_bd_pins fpgapipe_aurora_1/ap_rst_n]
connect_bd_net [get_bd_pins ddr4/addn_ui_clkout1] [get_bd_pins fpgapipe_aurora_1/init_clk]
create_bd_cell -type ip -vlnv xilinx.com:ip:xlconstant qsfp1_modsell
set_property -dict [list \
    CONFIG.CONST_WIDTH {1} \
    CONFIG.CONST_VAL {0} \
] [get_bd_cells qsfp1_modsell]
create_bd_port -dir O -type data qsfp1_modsell_pin
connect_bd_net [get_bd_pins qsfp1_modsell/dout] [get_bd_ports qsfp1_modsell_pin]
create_bd_cell -type ip -vlnv xilinx.com:ip:xlconstant qsfp1_resetl
set_property -dict [list \
    CONFIG.CONST_WIDTH {1} \
    CONFIG.CONST_VAL {1} \
] [get_bd_cells qsfp1_resetl]
create_bd_port -dir O -type data qsfp1_resetl_pin
connect_bd_net [get_bd_pins qsfp1_resetl/dout] [get_bd_ports qsfp1_resetl_pin]
create_bd_cell -type ip -vlnv xilinx.com:ip:xlconstant qsfp1_lpmode
set_property -dict [list \
    CONFIG.CONST_WIDTH {1} \
    CONFIG.CONST_VAL {0} \
] [get_bd_cells qsfp1_lpmode]
create_bd_port -dir O -type data qsfp1_lpmode_pin
connect_bd_net [get_bd_pins qsfp1_lpmode/dout] [get_bd_ports qsfp1_lpmode_pin]

# Addresses.
assign_bd_address -offset 0x0 -range 0x1000 -target_address_space [get_bd_addr_spaces xdma/M_AXI_LITE] [get_bd_addr_segs fpgapipe_core/S_AXI_CONTROL/reg0]
assign_bd_address -offset 0x0 -range 0x80000000 -target_address_space [get_bd_addr_spaces xdma/M_AXI] [get_bd_addr_segs ddr4/C0_DDR4_MEMORY_MAP/C0_DDR4_ADDRESS_BLOCK]
assign_bd_address -offset 0x0 -range 0x80000000 -target_address_space [get_bd_addr_spaces fpgapipe_core/m_axi] [get_bd_addr_segs ddr4/C0_DDR4_MEMORY_MAP/C0_DDR4_ADDRESS_BLOCK]

# The design has to pass the checks of the tools.
validate_bd_design
save_bd_design
make_wrapper -files [get_files system.bd] -top -import
set_property top system_wrapper [current_fileset]
update_compile_order -fileset sources_1

launch_runs impl_1 -to_step write_bitstream -jobs 4
wait_on_run impl_1
open_run impl_1
report_timing_summary -file timing.rpt
report_utilization -hierarchical -file utilization.rpt
source check_timing.tcl
file copy -force build/project.runs/impl_1/system_wrapper.bit fpgapipe.bit
