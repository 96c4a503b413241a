package web

import "net"

// On makes a server serve another listener than the one it was made with.
func (s *Server) On(l net.Listener) {
	_ = s.listener.Close()
	s.listener = l
}
