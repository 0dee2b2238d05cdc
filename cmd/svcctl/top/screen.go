package top

import (
	"context"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// screen is a terminal of which a verb takes the whole, and gives it back as it was.
type screen struct {
	out    *os.File
	in     *os.File
	before *unix.Termios
}

// openScreen takes the terminal: no echo, keys at once, and a screen beside the one with what was
// printed before.
func openScreen(in, out *os.File) (*screen, error) {
	before, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil {
		return nil, os.NewSyscallError("tcgetattr", err)
	}
	raw := *before
	raw.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(in.Fd()), unix.TCSETS, &raw); err != nil {
		return nil, os.NewSyscallError("tcsetattr", err)
	}
	s := &screen{out: out, in: in, before: before}
	_, err = out.WriteString("\x1b[?1049h\x1b[?25l")
	return s, err
}

// Close gives the terminal back.
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

// draw replaces the content of the screen. Lines are drawn over, so that nothing flickers.
func (s *screen) draw(text string) error {
	_, err := s.out.WriteString("\x1b[H" + strings.ReplaceAll(text, "\n", "\x1b[K\r\n") + "\x1b[K\x1b[J")
	return err
}

// keys are the bytes that are typed. The channel is closed when the terminal is gone.
func (s *screen) keys() <-chan byte {
	typed := make(chan byte)
	go func() {
		defer close(typed)
		b := make([]byte, 1)
		for {
			if n, err := s.in.Read(b); n == 0 || err != nil {
				return
			}
			typed <- b[0]
		}
	}()
	return typed
}

// Live draws the table until the user quits. now is the time of day.
func (t *Top) Live(ctx context.Context, in, out *os.File, now func() time.Time) error {
	if err := t.Look(ctx); err != nil {
		return err // the message stays on the previous screen
	}
	s, err := openScreen(in, out)
	if err != nil {
		return err
	}
	defer s.Close()
	typed := s.keys()
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		lines, columns := s.size()
		if err := s.draw(t.Table(now(), lines-1, columns) + cut(t.bar(), columns)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case key, open := <-typed:
			if !open || t.key(key) {
				return nil
			}
		case <-tick.C:
		}
		if err := t.Look(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}
