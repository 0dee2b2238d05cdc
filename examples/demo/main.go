package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("say what to do: demo serve or demo ask")
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	switch args[0] {
	case "serve":
		name := flags.String("name", "backend", "what the server calls itself")
		listen := flags.String("listen", ":8080", "address and port to listen on")
		_ = flags.Parse(args[1:]) // exits on an error
		return serve(ctx, *name, *listen)
	case "ask":
		var q question
		flags.IntVar(&q.count, "n", 0, "number of requests, each on a connection of its own")
		flags.DurationVar(&q.length, "for", 0, "ask for this long instead, and hold one more connection open throughout")
		flags.StringVar(&q.expect, "expect", "", "the servers that must answer, all of them and no other, separated by commas")
		_ = flags.Parse(args[1:])
		q.url = flags.Arg(0)
		return q.ask(ctx, out)
	case "gap":
		every := flags.Duration("every", 5*time.Millisecond, "pause between two downloads")
		length := flags.Duration("for", 5*time.Second, "how long to download")
		_ = flags.Parse(args[1:])
		return gap(ctx, out, flags.Arg(0), *every, *length)
	}
	return fmt.Errorf("there is no %q: use demo serve, demo ask or demo gap", args[0])
}

// serve answers every request with the server's name and the address of the client
// as the server sees it.
func serve(ctx context.Context, name, listen string) error {
	server := &http.Server{
		Addr:              listen,
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			client, _, _ := net.SplitHostPort(r.RemoteAddr)
			fmt.Fprintf(w, "%s %s\n", name, client)
		}),
	}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return fmt.Errorf("serve %s on %s: %w", name, listen, err)
	}
	return nil
}
