package box

import (
	"bytes"
	"context"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/journald"
	"svcctl.io/svcctl/appliance/logqueue"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

// LastWords is the maximum time for writing queued log lines when the process ends.
const LastWords = time.Second

func ServeVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "serve",
		About:   settings.SettingsAbout,
		Options: settings.SettingOptions(false),
		Run:     runServe,
	}
}

// runServe runs the appliance until a signal stops it.
func runServe(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	cfg, err := settings.Load(env, v)
	if err != nil {
		return err
	}
	log := openLog(env, &cfg.Log)
	if len(cfg.Manifests) == 0 {
		log.Warn("no directory of manifests is given: only objects of API clients are served; see --manifests")
	}
	ctx, stop := untilSignal(ctx, env, log, "what is programmed stays in force", syscall.SIGUSR2)
	defer stop()
	return env.Serve(ctx, cfg, log)
}

// openLog returns a logger that writes to stderr through a queue, so that a slow reader of the log blocks nothing. If the reader is gone, the program
// continues without a log: SIGPIPE is ignored, so a write to a closed pipe only returns an error. Package log uses the same output. If stderr is the
// systemd journal, text lines become journal entries with fields.
func openLog(env *cli.Env, cfg *config.Log) *slog.Logger {
	signal.Ignore(syscall.SIGPIPE)
	native := cfg.Format == config.LogText && env.Err == io.Writer(os.Stderr) && journald.IsStderr()
	if native {
		env.Log = logqueue.New(journald.NewConn(journald.Socket))
	} else {
		env.Log = logqueue.New(env.Err)
	}
	cfg.Queue = env.Log
	opts := &slog.HandlerOptions{Level: cfg.Level}
	var handler slog.Handler = slog.NewTextHandler(env.Log, opts)
	switch {
	case cfg.Format == config.LogJSON:
		handler = slog.NewJSONHandler(env.Log, opts)
	case native:
		handler = journald.NewHandler(env.Log, cfg.Level)
	}
	log := slog.New(handler)
	env.Log.OnDrop(func(lines uint64) {
		log.Warn("lines of this log were dropped: its reader is slow or gone, or it could not be written", "lines", lines, "total", env.Log.Dropped())
	})
	slog.SetDefault(log)
	stdlog.SetOutput(libraryLog{stdlog.Writer()})
	return log
}

// libraryLog is the output of package log, which libraries use. It drops the messages of net/http that quote unrequested data from an endpoint
// (Transport, "Unsolicited response"), so that endpoints cannot write to the log.
type libraryLog struct{ io.Writer }

func (l libraryLog) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("Unsolicited response received")) {
		return len(line), nil
	}
	return l.Writer.Write(line)
}

// untilSignal calls stopOnSignal with the signals that this process receives: SIGTERM, SIGINT, SIGHUP and more.
func untilSignal(ctx context.Context, env *cli.Env, log *slog.Logger, last string, more ...os.Signal) (context.Context, func()) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, append(more, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)...)
	ctx, stop := stopOnSignal(ctx, signals, log, last, func(code int) {
		env.Log.Flush(LastWords)
		os.Exit(code)
	})
	return ctx, func() {
		stop()
		signal.Stop(signals)
	}
}

// stopOnSignal cancels the context at the first SIGTERM or SIGINT and logs the text last. A second one exits at once, with the code that shells use
// for a process killed by that signal. SIGUSR2 cancels the context with the cause handover.ErrRequested, unless the installed program does not
// support a hand-over. SIGHUP is ignored: reloadable files are watched.
func stopOnSignal(ctx context.Context, signals <-chan os.Signal, log *slog.Logger, last string, exit func(int)) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		stopping, leaving := false, false
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				switch number, _ := s.(syscall.Signal); {
				case number == syscall.SIGHUP:
					log.Info("SIGHUP is ignored: the manifests are watched; settings change with a restart, which disturbs no traffic")
				case number == syscall.SIGUSR2:
					if err := takesOver(ctx); err != nil {
						log.Error("nothing is handed over, and it continues unchanged", "err", err)
						continue
					}
					log.Info("handing over; "+last, "signal", s.String())
					leaving = true
					cancel(handover.ErrRequested)
				case leaving && !stopping: // before it has handed over, which may take some seconds
					log.Info("stopped instead of handing over; "+last, "signal", s.String())
					exit(0)
				case stopping:
					log.Warn("stopped at once", "signal", s.String())
					exit(128 + int(number))
				default:
					log.Info("stopping; "+last, "signal", s.String())
					stopping = true
					cancel(nil)
				}
			}
		}
	}()
	return ctx, func() { cancel(nil); close(done) }
}

// takesOver runs the installed program, which may be a new version, to check that it supports taking over connections. It returns an error if not.
func takesOver(ctx context.Context) error {
	program, err := handover.Program()
	if err != nil {
		return err
	}
	return handover.Check(ctx, program)
}

func DownVerb() *cli.Verb {
	return &cli.Verb{
		Name: "down",
		Options: append([]*cli.Option{
			cli.YesOption(),
			{Name: "force", Group: cli.GroupHow, Usage: "even while an appliance serves"},
		}, settings.SocketOptions()...),
		Run: runDown,
	}
}

// runDown removes the kernel tables of svcctl, after confirmation by the user.
func runDown(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	const consequence = "this removes all that svcctl programmed: no Service is reachable through this box, and connections through it end"
	socket, err := settings.Socket(env, v)
	if err != nil {
		return err
	}
	if !v.Option("yes").On() && !env.StdinTTY { // wrong usage, whether an appliance serves or not
		return env.Consent(v, consequence)
	}
	if !v.Option("force").On() {
		switch _, err := client.New(socket).Version(ctx); {
		case err == nil:
			return fmt.Errorf("an appliance serves on %s and would bring everything back: stop it first, or give --force", socket)
		case !client.NotRunning(err):
			return fmt.Errorf("cannot determine whether an appliance still serves: %w; --force goes on all the same", err)
		}
	}
	if err := env.Consent(v, consequence); err != nil {
		return err
	}
	if err := env.Down(ctx); err != nil {
		return err
	}
	return env.Print("Nothing of svcctl is left in the kernel.\n")
}
