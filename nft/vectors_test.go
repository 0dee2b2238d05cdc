package nft

// The vectors of TableVersion 1.

var jhashVectors = map[int]uint32{
	0: 0x52242252, 1: 0x4f894d4e, 4: 0xc8499b00, 8: 0xe0dd86a0, 11: 0x0a03e3aa, 12: 0x0dd89923, 13: 0x32be238d, 16: 0x7826fb12, 20: 0x4f0a321c, 24: 0x47467427, 31: 0xae4ecde5,
}

var slotVectors = [5]uint32{236, 183, 734, 55, 12433}

var tableVectors = map[string]uint64{
	"maglev-5":      0xf0365e5db0d27509,
	"maglev-17":     0x781fc887964cf554,
	"source-3":      0xd1522004a468fe53,
	"weighted-hash": 0xad7682d3564c28f4,
	"weigh-3":       0x33ffe0eeaa46e27f,
	"weigh-2":       0x2d1c86c0777b0718,
	"weigh-100":     0x676a52b23028e4ff,
}

var destinationVectors = []string{"10.1.0.3", "10.1.0.2", "10.1.0.3"}
