package wire

import "strconv"

// Binary returns a number of bytes for people, of up to four digits, with a binary prefix: "1.5" and "K"; "900" and "".
func Binary(n uint64) (number, prefix string) {
	if n < 1024 {
		return strconv.FormatUint(n, 10), ""
	}
	const prefixes = "KMGTPE"
	value, unit := float64(n)/1024, 0
	for value >= 1024 && unit < len(prefixes)-1 {
		value, unit = value/1024, unit+1
	}
	precision := 0
	if value < 10 {
		precision = 1
	}
	return strconv.FormatFloat(value, 'f', precision, 64), prefixes[unit : unit+1]
}
