package api

import "time"

// The limits as a test sets them.

func (s *Server) SetHeaderTimeout(d time.Duration) { s.limits.header = d }
func (s *Server) SetWriteTimeout(d time.Duration)  { s.limits.write = d }
func (s *Server) SetIdleTimeout(d time.Duration)   { s.limits.idle = d }
func (s *Server) SetWatches(n int)                 { s.limits.watches, s.limits.unixWatches = n, n }
func (s *Server) SetRequests(n int)                { s.limits.requests = n }
