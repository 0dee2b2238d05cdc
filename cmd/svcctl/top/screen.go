package top

import (
	"cmp"
	"os"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// screen is the terminal in raw mode with the alternate screen. before holds the terminal settings to restore.
type screen struct {
	out    *os.File
	in     *os.File
	before *unix.Termios
}

// openScreen puts the terminal into raw mode, without echo, and switches to the alternate screen.
func openScreen(in, out *os.File) (*screen, error) {
	before, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil {
		return nil, os.NewSyscallError("tcgetattr", err)
	}
	raw := *before
	raw.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	raw.Iflag &^= unix.ICRNL | unix.IXON
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(in.Fd()), unix.TCSETS, &raw); err != nil {
		return nil, os.NewSyscallError("tcsetattr", err)
	}
	s := &screen{out: out, in: in, before: before}
	_, err = out.WriteString("\x1b[?1049h\x1b[?25l")
	return s, err
}

// Close restores the terminal.
func (s *screen) Close() {
	_, _ = s.out.WriteString("\x1b[?25h\x1b[?1049l")
	_ = unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, s.before)
}

// size returns the current size of the terminal.
func (s *screen) size() (lines, columns int) {
	w, err := unix.IoctlGetWinsize(int(s.out.Fd()), unix.TIOCGWINSZ)
	if err != nil || w.Row == 0 || w.Col == 0 {
		return 24, 80
	}
	return int(w.Row), int(w.Col)
}

// draw replaces the content of the screen. It overwrites the lines in place, which avoids flicker.
func (s *screen) draw(lines []string) error {
	_, err := s.out.WriteString("\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J")
	return err
}

// A key is a typed character, or one of the constants below for other keys.
type key rune

// Control characters, and negative values for keys that terminals send as escape sequences.
const (
	keyInterrupt key = 3 // Ctrl-C
	keyEnd       key = 4 // Ctrl-D
	keyErase     key = 8 // Ctrl-H
	keyTab       key = 9
	keyEnter     key = 13
	keyEscape    key = 27
	keyBackspace key = 127

	keyUp key = -1 - iota
	keyDown
	keyPageUp
	keyPageDown
	keyFirst
	keyLast
	keyLeft
	keyRight
	keyOther
)

// sequences maps escape sequences, without the leading ESC [ or ESC O, to keys (ECMA-48, xterm).
var sequences = map[string]key{
	"A": keyUp, "B": keyDown, "C": keyRight, "D": keyLeft, "H": keyFirst, "F": keyLast, "M": keyEnter,
	"1~": keyFirst, "7~": keyFirst, "4~": keyLast, "8~": keyLast, "5~": keyPageUp, "6~": keyPageDown,
}

// keysOf parses the bytes of one read from the terminal. An escape sequence must not be split across two reads.
func keysOf(b []byte) (typed []key) {
	for len(b) > 0 {
		if b[0] != byte(keyEscape) || len(b) < 3 || b[1] != '[' && b[1] != 'O' {
			typed = append(typed, key(b[0]))
			b = b[1:]
			continue
		}
		end := 2
		for end < len(b)-1 && (b[end] < 0x40 || b[end] > 0x7e) {
			end++
		}
		k, known := sequences[string(b[2:end+1])]
		if !known {
			k = keyOther
		}
		typed, b = append(typed, k), b[end+1:]
	}
	return typed
}

// keys returns a channel of typed keys. It is closed when the terminal can no longer be read.
func (s *screen) keys() <-chan key {
	typed := make(chan key)
	go func() {
		defer close(typed)
		b := make([]byte, 256)
		for {
			n, err := s.in.Read(b)
			if n == 0 || err != nil {
				return
			}
			for _, k := range keysOf(b[:n]) {
				typed <- k
			}
		}
	}()
	return typed
}

// wrapped breaks a text at blanks into lines of at most a number of columns.
func wrapped(text string, columns int) (lines []string) {
	n, blank := 0, 0
	for i, r := range text {
		if n += runeWidth(r); r == ' ' {
			blank = i
		}
		if n > columns && i > 0 {
			at := cmp.Or(blank, i)
			return append([]string{strings.TrimRight(text[:at], " ")}, wrapped(strings.TrimLeft(text[at:], " "), columns)...)
		}
	}
	return []string{text}
}

// cut truncates a text to a number of terminal columns; a truncated text ends in "…".
func cut(text string, columns int) string {
	if width(text) <= columns {
		return text
	}
	n := 0
	for i, r := range text {
		if n += runeWidth(r); n > columns-1 {
			return text[:i] + "…"
		}
	}
	return text
}

// width returns the number of terminal columns of a text.
func width(text string) (n int) {
	for _, r := range text {
		n += runeWidth(r)
	}
	return n
}

// wideRunes take two columns (Unicode Standard Annex #11, East Asian Width).
var wideRunes = &unicode.RangeTable{
	R16: []unicode.Range16{{0x1100, 0x115f, 1}, {0x2e80, 0x303e, 1}, {0x3041, 0xa4cf, 1}, {0xa960, 0xa97c, 1}, {0xac00, 0xd7a3, 1}, {0xf900, 0xfaff, 1}, {0xfe30, 0xfe6f, 1}, {0xff00, 0xff60, 1}, {0xffe0, 0xffe6, 1}},
	R32: []unicode.Range32{{0x1f300, 0x1f64f, 1}, {0x1f680, 0x1f6ff, 1}, {0x1f900, 0x1f9ff, 1}, {0x20000, 0x3fffd, 1}},
}

func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case unicode.Is(wideRunes, r):
		return 2
	}
	return 1
}
