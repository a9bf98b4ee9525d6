"""Board and cluster files that are broken, one fault each, and the good ones they are made from."""

from fpgapipe.boards.yaml_file import MAX_FILE_BYTES

BOARD = """\
format: 1
name: mine
title: A board
part: {name: xc7, dsp_kind: DSP48E2, lut: 1000, ff: 2000, bram36: 20, uram: 4, dsp: 50, source: ds}
fabric:
  counted: raw
  source: ds
  dies:
    - {name: SLR0, lut: 600, ff: 1000, bram36: 10, uram: 2, dsp: 25}
    - {name: SLR1, lut: 400, ff: 1000, bram36: 10, uram: 2, dsp: 25}
usable_share: {lut: 0.7, ff: 0.5, bram: 0.8, uram: 0.8, dsp: 0.8, source: ds}
shell:
  - {name: controller, die: SLR1, lut: 50, ff: 60, bram18: 3, dsp: 1, source: ds}
clock: {clk_target_hz: 300 MHz, source: 'estimate: a guess'}
memory:
  - name: ddr
    kind: ddr4
    count: 2
    size_bytes: 4 GiB
    bandwidth_bytes_per_s: 19.2 GB/s
    source: ds
    latency_s: 100 ns
    latency_source: ds
links:
  - name: qsfp
    count: 2
    protocol: aurora-64b66b
    line_rate_bits_per_s: 103.125 Gb/s
    source: ds
    latency_s: 0.5 us
    latency_source: ds
host: {interface: pcie-gen3-x16, bandwidth_bytes_per_s: 15 GB/s, source: ds}
sources:
  ds: {title: A data sheet, document: DS000}
"""

CLUSTER = """\
format: 1
name: pair
devices:
  - {name: a, board: u280}
  - {name: b, board: u280}
topology: links
links:
  - {from: a/qsfp/0, to: b/qsfp/1}
  - {from: b, to: a}
"""

# What is replaced in the good board above, and by what.
BROKEN_BOARDS: list[tuple[str, str]] = [
    ("format: 1", "format: 2"),
    ("format: 1", "format: one"),
    ("format: 1\n", ""),
    ("name: mine", "name: Mine"),
    ("name: mine", "name: a b"),
    ("name: mine", "name: "),
    ("name: mine", "name: 7"),
    ("name: mine", "name: [mine]"),
    ("name: mine", "name: true"),
    ("name: mine", f"name: {'x' * 65}"),
    ("name: mine", "name: -mine"),
    ("name: mine", "name: mine\nname: other"),
    ("name: mine", "nome: mine"),
    ("title: A board", f"title: {'x' * 500}"),
    ("title: A board", 'title: "bell \\a"'),
    ("title: A board", 'title: "\\ud800"'),
    ("title: A board", 'title: "\\UFFFFFFFF"'),
    ("title: A board", "title: {a: b}"),
    ("title: A board", "title: !!python/object/apply:os.getcwd []"),
    ("title: A board", "title: !!python/name:os.system"),
    ("title: A board", "title: !!str A board"),
    ("title: A board", "title: !local A board"),
    ("title: A board", "title: &t A board"),
    ("title: A board", "title: *t"),
    ("part: {", "part: &part {"),
    ("part: {", "<<: {a: 1}\npart: {"),
    ("part: {name", "part: [name"),
    ("dsp_kind: DSP48E2", "dsp_kind: DSP48E3"),
    ("dsp_kind: DSP48E2", "dsp_kind: 48"),
    ("dsp_kind: DSP48E2, ", ""),
    ("lut: 1000", "lut: -1"),
    ("lut: 1000", "lut: 1e400"),
    ("lut: 1000", "lut: .nan"),
    ("lut: 1000", "lut: NaN"),
    ("lut: 1000", "lut: .inf"),
    ("lut: 1000", "lut: -.INF"),
    ("lut: 1000", f"lut: {'9' * 30}"),
    ("lut: 1000", f"lut: {'9' * 5000}"),
    ("lut: 1000", "lut: 99999999999"),
    ("lut: 1000", "lut: 1000.5"),
    ("lut: 1000", "lut: 01000"),
    ("lut: 1000", "lut: 0x3e8"),
    ("lut: 1000", "lut: 1:30"),
    ("lut: 1000", "lut: '1000'"),
    ("lut: 1000", "lut: 1,000"),
    ("lut: 1000", "lut: yes"),
    ("lut: 1000", "lut: true"),
    ("lut: 1000", "lut: null"),
    ("lut: 1000", "lut: [1000]"),
    ("lut: 1000", "lut: {a: 1}"),
    ("lut: 1000", "lut: 2024-01-01"),
    ("lut: 1000", "lut: 999"),
    ("lut: 1000", "luts: 1000"),
    ("bram36: 20", "bram36: 20, bram18: 40"),
    ("bram36: 20, ", ""),
    ("bram36: 20", "bram36: 5"),
    ("dsp: 50", "dsp: 49"),
    ("source: ds}\nfabric", "source: dss}\nfabric"),
    ("source: ds}\nfabric", "source: ''}\nfabric"),
    ("source: ds}\nfabric", "source: 'estimate: '}\nfabric"),
    ("source: ds}\nfabric", "source: [ds]}\nfabric"),
    (", source: ds}\nfabric", "}\nfabric"),
    ("counted: raw", "counted: rawe"),
    ("  dies:", "  dice:"),
    ("name: SLR1", "name: SLR0"),
    ("name: SLR1", "name: a/b"),
    ("lut: 0.7", "lut: 0"),
    ("lut: 0.7", "lut: 1.01"),
    ("lut: 0.7", "lut: 70%"),
    ("lut: 0.7", "lut: -.inf"),
    ("die: SLR1", "die: SLR2"),
    ("bram18: 3", "bram18: 30"),
    ("lut: 50", "lut: 500"),
    ("shell:", "shell: none"),
    ("shell:\n  - {", "shell:\n  {"),
    ("300 MHz", "300 Mhz"),
    ("300 MHz", "300"),
    ("300 MHz", "300 GHz"),
    ("300 MHz", "-300 MHz"),
    ("300 MHz", "MHz"),
    ("300 MHz", "3e999 MHz"),
    ("300 MHz", "fast"),
    ("300 MHz", "300 GB/s"),
    ("4 GiB", "4 gib"),
    ("4 GiB", "4 Gb"),
    ("4 GiB", "0.3 B"),
    ("4 GiB", "1.7 B"),
    ("4 GiB", "0"),
    ("4 GiB", "999 TiB"),
    ("19.2 GB/s", "19.2 Gb/s"),
    ("19.2 GB/s", "19,2 GB/s"),
    ("19.2 GB/s", "0 GB/s"),
    ("kind: ddr4", "kind: DDR4"),
    ("count: 2\n    size", "count: 0\n    size"),
    ("latency_s: 100 ns", "latency_s: 100 ns\n    sustained_bytes_per_s: 17 GB/s"),
    ("latency_s: 100 ns", "latency_s: 100 ns\n    sustained_source: ds"),
    (
        "latency_s: 100 ns",
        "latency_s: 100 ns\n    sustained_bytes_per_s: 20 GB/s\n    sustained_source: ds",
    ),
    ("latency_s: 100 ns", "latency_s: -1 ns"),
    ("latency_s: 100 ns", "latency_s: 2"),
    ("latency_s: 100 ns", "latency_ns: 100"),
    ("protocol: aurora-64b66b", "protocol: aurora"),
    ("103.125 Gb/s", "103.125 Gbps"),
    ("103.125 Gb/s", "0"),
    ("103.125 Gb/s", "103.125 GB/s"),
    ("name: qsfp", "name: qsfp\n    payload_efficiency: 1.5"),
    ("interface: pcie-gen3-x16", "interface: pcie"),
    ("  ds: {", "  other: {title: Never used}\n  ds: {"),
    ("  ds: {title: A data sheet, document: DS000}", "  ds: A data sheet"),
    ("sources:\n  ds: {title: A data sheet, document: DS000}\n", "sources: {}\n"),
    ("sources:\n  ds: {title: A data sheet, document: DS000}\n", ""),
    ("host:", "? [a, b]\n: c\nhost:"),
    ("host:", "? {a: b}\n: [{c: d}]\nhost:"),
    ("host:", "*a : b\nhost:"),
    ("host:", "!x a: b\nhost:"),
    ("host:", "? \nhost:"),
    ("host:", "\thost:"),
    ("host:", "---\nhost:"),
    ("host:", "@host:"),
    ("host: {", "host: {{"),
]

BROKEN_CLUSTERS: list[tuple[str, str]] = [
    ("format: 1", "format: 1.5"),
    ("name: pair", "name: Pair!"),
    ("name: b,", "name: a,"),
    ("name: b,", "name: B,"),
    ("board: u280}\n  - {name: b", "board: u28O}\n  - {name: b"),
    ("board: u280}\n  - {name: b", "board: no/such.yaml}\n  - {name: b"),
    ("board: u280}\n  - {name: b", "board: ''}\n  - {name: b"),
    ("board: u280}\n  - {name: b", "board: 5}\n  - {name: b"),
    ("board: u280}\n  - {name: b", 'board: "a\\0.yaml"}\n  - {name: b'),
    ("board: u280}\n  - {name: b", f"board: {'x' * 300}.yaml}}\n  - {{name: b"),
    ("name: a,", "name: a, count: 0,"),
    ("name: a,", "name: a, count: 4097,"),
    ("name: a,", "name: a, count: 99999999999999999999,"),
    ("name: a,", "name: a, count: -3,"),
    ("name: a,", "name: a, count: 4096,"),
    ("name: a,", "name: a, cuont: 2,"),
    ("  - {name: a", "  - a\n  - {name: a"),
    ("devices:", "devices: 2\nx:"),
    ("devices:\n  - {name: a, board: u280}\n  - {name: b, board: u280}", "devices: []"),
    ("topology: links", "topology: star"),
    ("topology: links", "topology: chain"),
    ("topology: links", "topology: ring"),
    ("topology: links", "topology: [links]"),
    ("topology: links\n", ""),
    ("links:\n  - {from: a/qsfp/0, to: b/qsfp/1}\n  - {from: b, to: a}\n", ""),
    ("\nlinks:\n  - {from: a/qsfp/0, to: b/qsfp/1}\n  - {from: b, to: a}", "\nlinks: []"),
    ("from: a/qsfp/0", "from: a/qsfp/2"),
    ("from: a/qsfp/0", "from: a/qsfp/99999"),
    ("from: a/qsfp/0", "from: a/qsfp/-1"),
    ("from: a/qsfp/0", "from: a/sfp/0"),
    ("from: a/qsfp/0", "from: c/qsfp/0"),
    ("from: a/qsfp/0", "from: b/qsfp/0"),
    ("from: a/qsfp/0", "from: /"),
    ("from: a/qsfp/0", "from: 0"),
    ("from: a/qsfp/0", "form: a/qsfp/0"),
    ("from: a/qsfp/0, ", ""),
    ("{from: b, to: a}", "{from: b/qsfp/1, to: a}"),
    ("{from: b, to: a}", "{from: b, to: a}\n  - {from: a, to: b}"),
    ("{from: b, to: a}", "{from: b, to: b}"),
    ("{from: b, to: a}", "{from: b, to: a, line_rate_bits_per_s: 0}"),
    ("{from: b, to: a}", "{from: b, to: a, line_rate_bits_per_s: 104 Gb/s}"),
    ("{from: b, to: a}", "{from: b, to: a, line_rate_bits_per_s: -1 Gb/s}"),
    ("{from: b, to: a}", "{from: b, to: a, latency_s: .nan}"),
    ("{from: b, to: a}", "{from: b, to: a, latency_s: 1e9}"),
    ("{from: b, to: a}", "{from: b, to: a, latency_s: 1 ms, latency_s: 2 ms}"),
    ("{name: b, board: u280}", "{name: b, board: u280}\n  - {name: c, board: u280}"),
    ("{name: b, board: u280}", "{name: b, board: ulx3s}"),
    ("links:\n  -", "links: &l\n  - *l\n  -"),
    ("pair", "*pair"),
]

WHOLE_FILES: list[tuple[str, bytes]] = [
    ("empty", b""),
    ("blank", b"\n\n  \n"),
    ("comment", b"# nothing\n"),
    ("only dashes", b"---\n"),
    ("null", b"null\n"),
    ("number", b"42\n"),
    ("word", b"hello\n"),
    ("list", b"- a\n- b\n"),
    ("two documents", b"a: 1\n---\nb: 2\n"),
    ("nul bytes", b"\0" * 100),
    ("binary", bytes(range(256)) * 8),
    ("elf", b"\x7fELF\x02\x01\x01" + b"\0" * 64),
    ("gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\xae\x05\0"),
    ("latin-1", "title: Gerät\n".encode("latin-1")),
    ("utf-16", BOARD.encode("utf-16")),
    ("control", b"name: a\x07b\n"),
    ("deep lists", b"[" * 100_000),
    ("deep mappings", b"{a: " * 30_000),
    ("deep indents", b"".join(b" " * depth + b"a:\n" for depth in range(400))),
    ("deep dashes", b"- " * 50_000),
    ("too large", b"a: b\n" * (MAX_FILE_BYTES // 5 + 1)),
    ("many keys", b"".join(b"k%d: 1\n" % index for index in range(10_000))),
    ("many equal keys", b"name: 1\n" * 15_000),
    ("many faults", b"format: [" + b".nan," * 20_000 + b"]"),
    ("long key", b"a" * 100_000 + b": 1\n"),
    ("long digits", b"format: " + b"1" * 100_000),
    ("long almost digits", b"format: " + b"1" * 100_000 + b"x"),
    ("long unit", b"clock: {clk_target_hz: " + b"1" * 100_000 + b" MHz}"),
    ("many questions", b"? " * 30_000),
    ("many sources", b"sources: {" + b"".join(b"s%d: {}," % n for n in range(9_000)) + b"}"),
    ("many links", b"links: [" + b"{from: a}," * 12_000 + b"]"),
    ("bomb", b"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]\n"),
    ("cycle", b"&a [*a]\n"),
    ("cyclic mapping", b"name: &a {b: *a}\n"),
    ("directive", b"%YAML 9.9\n---\na: 1\n"),
    ("long directive", b"%YAML 1." + b"9" * 5_000 + b"\n---\na: 1\n"),
    ("tag directive", b"%TAG ! tag:yaml.org,2002:python/\n---\n!object/apply:os.getcwd []\n"),
    ("unfinished string", b'name: "abc\n'),
    ("unfinished list", b"name: [a, b\n"),
    ("tabs", b"a:\n\t- b\n"),
]
