!> The few calls of the operating system that Fortran has no words for.
!>
!> O_DIRECT differs between processors, so the Makefile takes it from the system's header; the other
!> flags are the same on all that Linux calls generic.
module posix
  use, intrinsic :: iso_c_binding, only: c_int, c_char, c_null_char, c_size_t, c_ptr, c_null_ptr
  implicit none
  private

  integer(c_int), parameter :: o_rdonly = 0, o_wronly = 1, o_creat = 64, o_trunc = 512
  integer(c_int), parameter :: o_direct = O_DIRECT
  integer(c_int), parameter :: owner_writes_all_read = 420
  integer(c_size_t), parameter :: page = 4096
  !< What memory for O_DIRECT begins at a multiple of.

  interface
    integer(c_int) function c_open(path, flags, mode) bind(c, name='open')
      import :: c_int, c_char
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int), value :: flags, mode
    end function c_open
    integer(c_size_t) function c_write(descriptor, bytes, count) bind(c, name='write')
      import :: c_int, c_size_t, c_ptr
      integer(c_int), value :: descriptor
      type(c_ptr), value :: bytes
      integer(c_size_t), value :: count
    end function c_write
    integer(c_size_t) function c_read(descriptor, bytes, count) bind(c, name='read')
      import :: c_int, c_size_t, c_ptr
      integer(c_int), value :: descriptor
      type(c_ptr), value :: bytes
      integer(c_size_t), value :: count
    end function c_read
    integer(c_int) function c_fsync(descriptor) bind(c, name='fsync')
      import :: c_int
      integer(c_int), value :: descriptor
    end function c_fsync
    integer(c_int) function c_close(descriptor) bind(c, name='close')
      import :: c_int
      integer(c_int), value :: descriptor
    end function c_close
    type(c_ptr) function c_aligned_alloc(alignment, size) bind(c, name='aligned_alloc')
      import :: c_size_t, c_ptr
      integer(c_size_t), value :: alignment, size
    end function c_aligned_alloc
    integer(c_int) function c_usleep(microseconds) bind(c, name='usleep')
      import :: c_int
      integer(c_int), value :: microseconds
    end function c_usleep
    subroutine c_exit(code) bind(c, name='exit')
      import :: c_int
      integer(c_int), value :: code
    end subroutine c_exit
  end interface

  public :: fsync_path, end_with, create_file, open_file, write_all, read_all, fsync_file
  public :: close_file, aligned_memory, nap

contains

  !> All that was written to a file, by whomever on this host, is on its disk. False where it
  !> failed.
  logical function fsync_path(path)
    character(*), intent(in) :: path
    integer :: file

    file = open_file(path)
    fsync_path = file >= 0
    if (.not. fsync_path) return
    fsync_path = fsync_file(file)
    fsync_path = close_file(file) .and. fsync_path
  end function fsync_path

  !> An empty file to be written, past the page cache where that is asked for; negative: refused.
  integer function create_file(path, direct)
    character(*), intent(in) :: path
    logical, intent(in) :: direct

    create_file = c_open(path // c_null_char, ior(ior(o_wronly, o_creat), &
        ior(o_trunc, merge(o_direct, 0, direct))), owner_writes_all_read)
  end function create_file

  !> A file to be read; negative: refused.
  integer function open_file(path)
    character(*), intent(in) :: path

    open_file = c_open(path // c_null_char, o_rdonly, 0)
  end function open_file

  !> All of it was taken.
  logical function write_all(file, bytes, count)
    integer, intent(in) :: file, count
    type(c_ptr), intent(in) :: bytes

    write_all = c_write(file, bytes, int(count, c_size_t)) == count
  end function write_all

  !> All of it was there.
  logical function read_all(file, bytes, count)
    integer, intent(in) :: file, count
    type(c_ptr), intent(in) :: bytes

    read_all = c_read(file, bytes, int(count, c_size_t)) == count
  end function read_all

  logical function fsync_file(file)
    integer, intent(in) :: file

    fsync_file = c_fsync(file) == 0
  end function fsync_file

  logical function close_file(file)
    integer, intent(in) :: file

    close_file = c_close(file) == 0
  end function close_file

  !> Memory that O_DIRECT takes, whole pages; a null pointer where there is none.
  type(c_ptr) function aligned_memory(bytes)
    integer, intent(in) :: bytes

    aligned_memory = c_null_ptr
    if (bytes > 0) aligned_memory = c_aligned_alloc(page, (bytes + page - 1) / page * page)
  end function aligned_memory

  !> Leaves the processor to others for less than a second. A signal may end it sooner.
  subroutine nap(seconds)
    real(kind(1.0d0)), intent(in) :: seconds
    integer(c_int) :: unused

    unused = c_usleep(int(1.0d6 * seconds, c_int))
  end subroutine nap

  !> Ends the process with a code and without a word, which STOP cannot.
  subroutine end_with(code)
    integer, intent(in) :: code

    call c_exit(int(code, c_int))
  end subroutine end_with

end module posix
