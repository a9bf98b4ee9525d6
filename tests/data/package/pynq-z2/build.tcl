# Builds the overlay fpgapipe for pynq-z2-1. Made by fpgapipe; do not edit.

create_project -force project build -part xc7z020clg400-1
set_property board_part tul.com.tw:pynq-z2:part0:1.0 [current_project]
add_files -norecurse [list ../../../hardware/core_2x2_DIGEST.v fpgapipe_core.v]

update_compile_order -fileset sources_1
create_bd_design system

# The processing system: one clock, one master, one port to memory.
create_bd_cell -type ip -vlnv xilinx.com:ip:processing_system7 zynq_ps
apply_bd_automation -rule xilinx.com:bd_rule:processing_system7 -config {make_external "FIXED_IO, DDR" apply_board_preset "1" Master "Disable" Slave "Disable"} [get_bd_cells zynq_ps]
set_property -dict [list \
    CONFIG.PCW_USE_M_AXI_GP0 {1} \
    CONFIG.PCW_USE_S_AXI_HP0 {1} \
    CONFIG.PCW_S_AXI_HP0_DATA_WIDTH {64} \
    CONFIG.PCW_USE_FABRIC_INTERRUPT {1} \
    CONFIG.PCW_IRQ_F2P_INTR {1} \
    CONFIG.PCW_FPGA0_PERIPHERAL_FREQMHZ {100} \
] [get_bd_cells zynq_ps]

# The core, its reset, and what joins it to the processing system.
create_bd_cell -type ip -vlnv xilinx.com:ip:proc_sys_reset core_reset
create_bd_cell -type module -reference fpgapipe_core fpgapipe_core
create_bd_cell -type ip -vlnv xilinx.com:ip:smartconnect control
set_property -dict [list \
    CONFIG.NUM_SI {1} \
    CONFIG.NUM_MI {1} \
    CONFIG.NUM_CLKS {1} \
] [get_bd_cells control]
create_bd_cell -type ip -vlnv xilinx.com:ip:smartconnect memory
set_property -dict [list \
    CONFIG.NUM_SI {1} \
    CONFIG.NUM_MI {1} \
    CONFIG.NUM_CLKS {1} \
] [get_bd_cells memory]
connect_bd_net [get_bd_pins zynq_ps/FCLK_CLK0] [get_bd_pins core_reset/slowest_sync_clk] [get_bd_pins fpgapipe_core/ap_clk] [get_bd_pins control/aclk] [get_bd_pins memory/aclk] [get_bd_pins zynq_ps/M_AXI_GP0_ACLK] [get_bd_pins zynq_ps/S_AXI_HP0_ACLK]
connect_bd_net [get_bd_pins zynq_ps/FCLK_RESET0_N] [get_bd_pins core_reset/ext_reset_in]
connect_bd_net [get_bd_pins core_reset/peripheral_aresetn] [get_bd_pins fpgapipe_core/ap_rst_n] [get_bd_pins control/aresetn] [get_bd_pins memory/aresetn]
connect_bd_intf_net [get_bd_intf_pins zynq_ps/M_AXI_GP0] [get_bd_intf_pins control/S00_AXI]
connect_bd_intf_net [get_bd_intf_pins control/M00_AXI] [get_bd_intf_pins fpgapipe_core/S_AXI_CONTROL]
connect_bd_intf_net [get_bd_intf_pins fpgapipe_core/m_axi] [get_bd_intf_pins memory/S00_AXI]
connect_bd_intf_net [get_bd_intf_pins memory/M00_AXI] [get_bd_intf_pins zynq_ps/S_AXI_HP0]
connect_bd_net [get_bd_pins fpgapipe_core/interrupt] [get_bd_pins zynq_ps/IRQ_F2P]

# Addresses.
assign_bd_address -offset 0x40000000 -range 0x1000 -target_address_space [get_bd_addr_spaces zynq_ps/Data] [get_bd_addr_segs fpgapipe_core/S_AXI_CONTROL/reg0]
assign_bd_address -offset 0x0 -range 0x20000000 -target_address_space [get_bd_addr_spaces fpgapipe_core/m_axi] [get_bd_addr_segs zynq_ps/S_AXI_HP0/HP0_DDR_LOWOCM]

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
file copy -force build/project.gen/sources_1/bd/system/hw_handoff/system.hwh fpgapipe.hwh
write_hw_platform -fixed -include_bit -force -file fpgapipe.xsa
