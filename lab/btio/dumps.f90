!> The file of dumps, in each of BT-IO's subtypes, and how long each phase took at this rank.
!>
!> A dump is five numbers a point of the grid, in Fortran's order; dumps follow each other. Nothing
!> is flushed to a disk unless that is asked for: NPB does not.
module dumps
  use mpi_f08, only: MPI_Barrier, MPI_Comm, MPI_Comm_free, MPI_Comm_rank, MPI_Comm_split_type, &
      MPI_COMM_TYPE_SHARED, MPI_INFO_NULL, MPI_Wtime
  use equations, only: dp
  use decomposition, only: partition_type
  use dumps_mpi, only: mpi_dumps_type, hint_type
  use dumps_fortran, only: fortran_dumps_type, own_path
  use failure, only: fail
  use posix, only: fsync_path
  implicit none
  private

  integer, parameter, public :: opening = 1, writing = 2, syncing = 3, closing = 4, reading = 5
  integer, parameter, public :: phases = 5
  character(5), parameter, public :: phase_names(phases) = &
      ['open ', 'write', 'sync ', 'close', 'read ']
  character(7), parameter, public :: subtypes(5) = &
      ['none   ', 'full   ', 'simple ', 'fortran', 'epio   ']

  type, public :: dumps_type
    character(:), allocatable :: subtype, path
    logical :: with_sync = .false.
    type(hint_type), allocatable :: hints(:)
    real(dp) :: seconds(phases) = 0
    type(mpi_dumps_type), private :: by_mpi
    type(fortran_dumps_type), private :: by_fortran
  contains
    procedure :: exist
    procedure :: is_mpi
    procedure :: create
    procedure :: open_to_read
    procedure :: write => write_dump
    procedure :: read => read_dump
    procedure :: sync_and_close
    procedure :: close => close_file
    procedure, private :: open => open_file
    procedure, private :: name_at
  end type dumps_type

contains

  pure logical function exist(this)
    class(dumps_type), intent(in) :: this

    exist = this%subtype /= 'none'
  end function exist

  pure logical function is_mpi(this)
    class(dumps_type), intent(in) :: this

    is_mpi = this%subtype == 'full' .or. this%subtype == 'simple'
  end function is_mpi

  !> An empty file, open to be written. The lowest rank of each host makes it, so that hosts without
  !> a common file system have a file each, with what their own ranks have written.
  subroutine create(this, part)
    class(dumps_type), intent(inout) :: this
    type(partition_type), intent(in) :: part
    real(dp) :: begin
    integer :: unit, code
    logical :: makes_it
    character(200) :: message

    begin = MPI_Wtime()
    makes_it = is_lowest_of_host(part%comm)
    if (this%subtype == 'epio' .or. makes_it) then
      open (newunit=unit, file=this%name_at(part%rank), access='stream', form='unformatted', &
          status='replace', iostat=code, iomsg=message)
      if (code /= 0) call fail(this%name_at(part%rank) // ': ' // trim(message))
      close (unit)
    end if
    call MPI_Barrier(part%comm)
    call this%open(part, .true.)
    this%seconds(opening) = MPI_Wtime() - begin
  end subroutine create

  subroutine open_to_read(this, part)
    class(dumps_type), intent(inout) :: this
    type(partition_type), intent(in) :: part

    call this%open(part, .false.)
  end subroutine open_to_read

  subroutine open_file(this, part, to_write)
    class(dumps_type), intent(inout) :: this
    type(partition_type), intent(in) :: part
    logical, intent(in) :: to_write

    if (this%is_mpi()) then
      call this%by_mpi%open(part, this%path, to_write, this%subtype == 'full', this%hints)
    else
      call this%by_fortran%open(this%name_at(part%rank), to_write, this%subtype == 'fortran')
    end if
  end subroutine open_file

  subroutine write_dump(this, part, number, u)
    class(dumps_type), intent(inout) :: this
    type(partition_type), intent(in) :: part
    integer, intent(in) :: number
    real(dp), allocatable, intent(in) :: u(:, :, :, :, :)
    real(dp) :: begin

    begin = MPI_Wtime()
    if (this%is_mpi()) then
      call this%by_mpi%write(part, number, u)
    else
      call this%by_fortran%write(part, number, u)
    end if
    this%seconds(writing) = this%seconds(writing) + MPI_Wtime() - begin
  end subroutine write_dump

  subroutine read_dump(this, part, number, u)
    class(dumps_type), intent(inout) :: this
    type(partition_type), intent(in) :: part
    integer, intent(in) :: number
    real(dp), allocatable, intent(inout) :: u(:, :, :, :, :)
    real(dp) :: begin

    begin = MPI_Wtime()
    if (this%is_mpi()) then
      call this%by_mpi%read(part, number, u)
    else
      call this%by_fortran%read(part, number, u)
    end if
    this%seconds(reading) = this%seconds(reading) + MPI_Wtime() - begin
  end subroutine read_dump

  !> What Fortran writes leaves its buffers at the close, so it is flushed behind that.
  subroutine sync_and_close(this, part)
    class(dumps_type), intent(inout) :: this
    type(partition_type), intent(in) :: part
    real(dp) :: begin

    begin = MPI_Wtime()
    if (this%with_sync .and. this%is_mpi()) then
      call this%by_mpi%sync()
      this%seconds(syncing) = MPI_Wtime() - begin
    end if
    begin = MPI_Wtime()
    call this%close()
    this%seconds(closing) = MPI_Wtime() - begin
    if (this%with_sync .and. .not. this%is_mpi()) then
      begin = MPI_Wtime()
      if (.not. fsync_path(this%name_at(part%rank))) &
          call fail(this%name_at(part%rank) // ': fsync failed')
      this%seconds(syncing) = MPI_Wtime() - begin
    end if
  end subroutine sync_and_close

  subroutine close_file(this)
    class(dumps_type), intent(inout) :: this

    if (this%is_mpi()) then
      call this%by_mpi%close()
    else
      call this%by_fortran%close()
    end if
  end subroutine close_file

  function name_at(this, rank) result(name)
    class(dumps_type), intent(in) :: this
    integer, intent(in) :: rank
    character(:), allocatable :: name

    name = this%path
    if (this%subtype == 'epio') name = own_path(this%path, rank)
  end function name_at

  logical function is_lowest_of_host(comm)
    type(MPI_Comm), intent(in) :: comm
    type(MPI_Comm) :: host
    integer :: rank

    call MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, host)
    call MPI_Comm_rank(host, rank)
    call MPI_Comm_free(host)
    is_lowest_of_host = rank == 0
  end function is_lowest_of_host

end module dumps
