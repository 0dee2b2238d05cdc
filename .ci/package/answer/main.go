package main

import (
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// patience bounds each step: when it is over the machine has stopped.
const patience = time.Minute

// greeting is the length of a server's name.
const greeting = 4

func main() {
	args := os.Args[1:]
	switch {
	case len(args) == 3 && args[0] == "serve" && len(args[2]) == greeting:
		fail(serve(args[1], args[2]))
	case len(args) == 2 && args[0] == "ask":
		ask(args[1])
	case len(args) == 2 && args[0] == "hold":
		fail(hold(args[1]))
	default:
		fmt.Fprintln(os.Stderr, `usage: answer serve ADDRESS NAME   say the name, of four letters, to each client, and give back what it says
       answer ask ADDRESS          connect again and again until SIGTERM; print how many there were, how many failed, and the names
       answer hold ADDRESS         talk over one connection until SIGTERM; print how many words came back`)
		os.Exit(2)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "answer:", err)
		os.Exit(1)
	}
}

// serve serves all clients, one goroutine each.
func serve(address, name string) error {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if _, err := c.Write([]byte(name)); err == nil {
				_, _ = io.Copy(c, c) // ends with the client
			}
		}()
	}
}

// stopped reports whether SIGTERM came.
func stopped() func() bool {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	return func() bool { return len(c) > 0 }
}

// ask connects every 5 ms, and prints why a connection failed.
func ask(address string) {
	asked, failed, names := 0, 0, map[string]bool{}
	for over := stopped(); !over(); time.Sleep(5 * time.Millisecond) {
		asked++
		c, name, err := greeted(address)
		if err != nil {
			failed++
			fmt.Fprintln(os.Stderr, "answer:", err)
			continue
		}
		names[name] = true
		c.Close()
	}
	fmt.Println(asked, failed, strings.Join(slices.Sorted(maps.Keys(names)), ","))
}

// greeted is a connection to a server, and the server's name.
func greeted(address string) (net.Conn, string, error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, "", err
	}
	name, err := read(c, greeting)
	if err != nil {
		c.Close()
		return nil, "", err
	}
	return c, name, nil
}

// read reads n bytes.
func read(c net.Conn, n int) (string, error) {
	got := make([]byte, n)
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.ReadFull(c, got); err != nil {
		return "", fmt.Errorf("%s: %w", c.RemoteAddr(), err)
	}
	return string(got), nil
}

// hold writes a word every 50 ms and expects its echo.
func hold(address string) error {
	c, _, err := greeted(address)
	if err != nil {
		return err
	}
	defer c.Close()
	words := 0
	for over := stopped(); !over(); time.Sleep(50 * time.Millisecond) {
		words++
		word := fmt.Sprintf("word %8d", words)
		if _, err := c.Write([]byte(word)); err != nil {
			return err
		}
		if got, err := read(c, len(word)); err != nil || got != word {
			return fmt.Errorf("word %d: came back as %q (%v)", words, got, err)
		}
	}
	fmt.Println(words)
	return nil
}
