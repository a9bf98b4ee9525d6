# Packages fpgapipe_aurora_1, the Aurora of link 1, as a kernel. Made by fpgapipe.

create_project -force fpgapipe_aurora_1 build/fpgapipe_aurora_1 -part xcu55c-fsvh2892-2L-e
create_ip -name aurora_64b66b -vendor xilinx.com -library ip -module_name aurora_64b66b_1
set_property -dict [list \
    CONFIG.C_AURORA_LANES {4} \
    CONFIG.C_LINE_RATE {25.78125} \
    CONFIG.C_REFCLK_FREQUENCY {161.1328125} \
    CONFIG.C_INIT_CLK {100} \
    CONFIG.interface_mode {Framing} \
    CONFIG.flow_mode {None} \
    CONFIG.crc_mode {false} \
    CONFIG.drp_mode {Disabled} \
    CONFIG.C_USE_BYTESWAP {true} \
    CONFIG.SupportLevel {1} \
] [get_ips aurora_64b66b_1]
generate_target all [get_ips aurora_64b66b_1]
add_files -norecurse [list fpgapipe_aurora_1.v aurora_bridge_4x64.v]
add_files -fileset constrs_1 -norecurse fpgapipe_aurora_1.xdc
set_property PROCESSING_ORDER LATE [get_files fpgapipe_aurora_1.xdc]
set_property top fpgapipe_aurora_1 [current_fileset]
update_compile_order -fileset sources_1

ipx::package_project -root_dir build/fpgapipe_aurora_1_ip -vendor fpgapipe -library kernel -taxonomy /KernelIP -import_files -set_current true
set core [ipx::current_core]
ipx::infer_bus_interface ap_clk xilinx.com:signal:clock_rtl:1.0 $core
ipx::infer_bus_interface ap_rst_n xilinx.com:signal:reset_rtl:1.0 $core
ipx::remove_bus_interface init_clk $core
ipx::associate_bus_interfaces -busif tx_axis -clock ap_clk $core
ipx::associate_bus_interfaces -busif rx_axis -clock ap_clk $core
ipx::associate_bus_interfaces -busif clock_axis -clock ap_clk $core
ipx::associate_bus_interfaces -clock ap_clk -reset ap_rst_n $core

set bus [ipx::add_bus_interface -quiet gt_port $core]
set_property interface_mode master $bus
set_property abstraction_type_vlnv xilinx.com:interface:gt_rtl:1.0 $bus
set_property bus_type_vlnv xilinx.com:interface:gt:1.0 $bus
set_property physical_name gt_rxp_in [ipx::add_port_map -quiet GRX_P $bus]
set_property physical_name gt_rxn_in [ipx::add_port_map -quiet GRX_N $bus]
set_property physical_name gt_txp_out [ipx::add_port_map -quiet GTX_P $bus]
set_property physical_name gt_txn_out [ipx::add_port_map -quiet GTX_N $bus]

set bus [ipx::add_bus_interface -quiet gt_refclk $core]
set_property interface_mode slave $bus
set_property abstraction_type_vlnv xilinx.com:interface:diff_clock_rtl:1.0 $bus
set_property bus_type_vlnv xilinx.com:interface:diff_clock:1.0 $bus
set_property physical_name gt_refclk_p [ipx::add_port_map -quiet CLK_P $bus]
set_property physical_name gt_refclk_n [ipx::add_port_map -quiet CLK_N $bus]

set_property sdx_kernel true $core
set_property sdx_kernel_type rtl $core
ipx::update_source_project_archive -component $core
ipx::update_checksums $core
ipx::save_core $core
package_xo -force -xo_path fpgapipe_aurora_1.xo -kernel_name fpgapipe_aurora_1 -ctrl_protocol ap_ctrl_none -ip_directory build/fpgapipe_aurora_1_ip
